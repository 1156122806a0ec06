"""Seeds are repetitions: means and intervals over them, and paired differences between points."""

import json
import math

import pytest
from rich.console import Console
from support.repeated import LEAKED, repeated
from support.run_folders import Page, page_of, row, written
from support.tiny import rows as read

from fedsim import report
from fedsim.cli.summary import print_summary
from fedsim.report import final_utility, summary, utility_summary, verdicts, write_report
from fedsim.report.folder import open_folder
from fedsim.report.intervals import Estimate
from fedsim.report.replication import over_rounds, undefended
from fedsim.report.traces import curve
from fedsim.runs.reading import MEASURES, split_point

T2 = 4.302652729911275
"""Student's 97.5 % quantile with two degrees of freedom."""


@pytest.mark.parametrize(
    ("point", "split"),
    [
        ("", ("", "")),
        ("seed=7", ("7", "")),
        ("seed=7,training.lr=0.1", ("7", "training.lr=0.1")),
        ("training.lr=0.1,seed=7", ("7", "training.lr=0.1")),
        ("task.seed=7", ("", "task.seed=7")),
        ("threat.victims=[0,3],seed=1", ("1", "threat.victims=[0,3]")),
        ("defenses=sign(seed=3 scale=0.1)", ("", "defenses=sign(seed=3 scale=0.1)")),
    ],
)
def test_the_seed_is_taken_out_of_a_points_name(point, split):
    assert split_point(point) == split


def test_a_point_is_summarised_over_the_means_of_its_seeds(tmp_path):
    found = {(one["point"], one["label"]): one for one in summary(repeated(tmp_path / "run"))}
    assert len(found) == 6
    one = found["defenses.0.sigma=0.1", "llg"]
    assert (one["seeds"], one["n"], one["attacks"]) == (3, 18, 18)
    assert one["mean"] == pytest.approx(LEAKED["0.1"])
    half = T2 * 0.02 / math.sqrt(3)  # of the means 0.18, 0.20, 0.22; clients do not widen it
    assert (one["low"], one["high"]) == pytest.approx((0.2 - half, 0.2 + half))
    json.dumps(one, allow_nan=False)


def test_seeds_with_fewer_victims_count_as_much_as_others(tmp_path):
    extra = [
        row(value=0.0, point="seed=7,defenses.0.sigma=0.1", seed=7, round=4, client=n)
        for n in range(50)
    ]
    (one,) = (
        one
        for one in summary(repeated(tmp_path / "run", more=extra))
        if (one["point"], one["label"]) == ("defenses.0.sigma=0.1", "llg")
    )
    assert one["mean"] == pytest.approx((0.18 * 6 / 56 + 0.20 + 0.22) / 3)


def test_a_defended_point_is_compared_on_the_same_seeds_and_victims(tmp_path):
    found = {
        one["point"]: one for one in summary(repeated(tmp_path / "run")) if one["label"] == "llg"
    }
    base, other = found["defenses.0.sigma=0.0"], found["defenses.0.sigma=0.1"]
    assert (base["against"], base["difference"]) == (None, None)
    assert other["against"] == "defenses.0.sigma=0.0"
    assert (other["difference"], other["pairs"]) == (pytest.approx(-0.7), 18)
    # Seeds and clients shift both points alike, so the difference is known exactly.
    assert other["difference_high"] - other["difference_low"] == pytest.approx(0, abs=1e-9)
    assert other["difference_shown"] == "-70.0 points [-70.0, -70.0]"


@pytest.mark.parametrize(
    ("base", "ours", "shown"),
    [
        (1.0, 0.0, "-100.0 points [-100.0, -49.3]"),
        (0.0, 1.0, "+100.0 points [+49.3, +100.0]"),
        (1.0, 1.0, "+0.0 points [-50.7, +50.7]"),
    ],
)
def test_a_difference_that_all_pairs_have_is_not_taken_for_certain(
    base, ours, shown, tmp_path, monkeypatch
):
    """Wilson's interval of 18 of 18 pairs, with Student's quantile for three seeds."""
    assert pytest.approx(49.3, abs=0.05) == 100 * 18 / (18 + T2**2)
    values = {"0.0": base, "0.1": ours}
    monkeypatch.setattr("support.repeated.value", lambda sigma, *_: values.get(str(sigma), 0.5))
    found = {
        one["point"]: one for one in summary(repeated(tmp_path / "run")) if one["label"] == "llg"
    }
    assert found["defenses.0.sigma=0.1"]["difference_shown"] == shown


def test_attacks_that_only_one_point_has_are_in_no_difference(tmp_path):
    extra = [row(value=0.0, point="seed=7,defenses.0.sigma=0.1", seed=7, round=4)]
    found = [one for one in summary(repeated(tmp_path / "run", more=extra)) if one["pairs"]]
    assert {one["pairs"] for one in found} == {18}


@pytest.mark.parametrize("seeds", [(7,), (7, 8)])
def test_one_or_two_seeds_have_no_interval_over_seeds_and_the_page_says_so(tmp_path, seeds):
    folder = repeated(tmp_path / "run", seeds)
    found = [one for one in summary(folder) if one["against"]]
    assert found
    assert all(one["difference"] is not None for one in found)
    assert {one["difference_low"] for one in found} == {None}
    assert {one["low"] for one in utility_summary(folder)} == {None}
    page = page_of(folder)
    assert ("One seed, so there is no interval" in page) == (len(seeds) == 1)
    assert ("Means over 2 seeds (7, 8). An interval over seeds takes" in page) == (len(seeds) == 2)
    assert '"fill"' not in page.split('id="figures">')[1].split("</script>")[0]


def test_utility_is_a_mean_over_seeds_in_the_last_round(tmp_path):
    folder = repeated(tmp_path / "run")
    assert final_utility(folder)["defenses.0.sigma=0.1"]["accuracy"] == pytest.approx(0.68)
    (one,) = (
        row
        for row in utility_summary(folder)
        if (row["point"], row["metric"]) == ("defenses.0.sigma=0.1", "accuracy")
    )
    half = T2 * 0.01 / math.sqrt(3)
    assert (one["low"], one["high"]) == pytest.approx((0.68 - half, 0.68 + half))
    assert one["difference_shown"] == "+0.0 points [+0.0, +0.0]"


@pytest.mark.parametrize(
    ("points", "bases"),
    [
        (["defenses.0.sigma=0.0", "defenses.0.sigma=0.1"], {1: 0}),
        (["defenses=none", "defenses=sign", "defenses=top-k(k=0.1)"], {1: 0, 2: 0}),
        (["training.lr=0.1", "training.lr=0.2"], {}),
        (["defenses.0.sigma=0.01", "defenses.0.sigma=0.1"], {}),
        (["defenses.0.rate=0.5,defenses.1.sigma=0.0", "defenses.0.rate=0.0,defenses.1.sigma=0"],
         {0: 1}),
        (["training.batch_size=1,defenses.0.sigma=0", "training.batch_size=1,defenses.0.sigma=1",
          "training.batch_size=2,defenses.0.sigma=0", "training.batch_size=2,defenses.0.sigma=1"],
         {1: 0, 3: 2}),
        (["defenses.0.error_feedback=False", "defenses.0.error_feedback=True"], {}),
        (["defenses.0.clip=none", "defenses.0.clip=1.0"], {}),
        (["", "x"], {}),
    ],
)  # fmt: skip
def test_the_baseline_is_the_point_without_defense_and_with_the_same_other_values(points, bases):
    assert undefended(points) == {points[one]: points[base] for one, base in bases.items()}


def test_the_page_overlays_the_points_undefended_first(tmp_path):
    page = page_of(repeated(tmp_path / "run", sigmas=("0.1", "0.01", "0.0")))
    figures = json.loads(page.split('id="figures">')[1].split("</script>")[0])
    # Three points on their own, then all together, and utility against leakage.
    assert len(figures) == 5
    assert page.split('id="point"')[1].split("</select>")[0].count("<option") == 3
    drawn = figures[3]["data"]
    named = [trace["name"] for trace in drawn if trace["showlegend"]]
    assert named == [*(f"defenses.0.sigma={sigma}" for sigma in ("0.0", "0.1", "0.01")),
                     "random guess"]  # fmt: skip
    bands = [trace for trace in drawn if trace.get("fill")]
    assert {trace["legendgroup"] for trace in bands} == {"0", "1", "2"}
    assert [at for at, trace in enumerate(drawn) if trace["name"] == "random guess"]
    titles = [note["text"] for note in figures[3]["layout"]["annotations"]]
    assert titles == ["<b>Accuracy</b>", "<b>Loss</b>", "<b>llg: Labels recovered</b>",
                      "<b>dlg: Mean squared error</b>"]  # fmt: skip
    words = " ".join(" ".join(Page(page).words).split())
    assert "Differences from the point defenses.0.sigma=0.0." in words
    assert "Means over 3 seeds (7, 8, 9)" in words
    markdown = write_report(tmp_path / "run", "markdown").read_text(encoding="utf-8")
    assert "-70.0 points [-70.0, -70.0]".replace("[", "\\[").replace("]", "\\]") in markdown


def test_more_points_than_colours_are_there_to_be_chosen(tmp_path):
    rows = [row(point=f"training.lr=0.{n}") for n in range(1, 10)]
    page = page_of(written(tmp_path, *rows, points=[one["point"] for one in rows]))
    data = json.loads(page.split('id="figures">')[1].split("</script>")[0])[9]["data"]
    hidden = {trace["name"] for trace in data if trace.get("visible") == "legendonly"}
    assert {f"training.lr=0.{n}" for n in (7, 8, 9)} <= hidden
    assert "The first 6 are shown, and a click in the legend shows others." in page


def test_a_chart_of_very_many_points_leaves_the_last_to_the_tables(tmp_path):
    rows = [row(point=f"training.lr=0.{n}") for n in range(100, 130)]
    page = page_of(written(tmp_path, *rows, points=[one["point"] for one in rows]))
    data = json.loads(page.split('id="figures">')[1].split("</script>")[0])[30]["data"]
    named = [trace["name"] for trace in data if trace["showlegend"]]
    assert named == [*(f"training.lr=0.{n}" for n in range(100, 124)), "random guess"]
    assert "6 others are in the tables alone" in page


def test_curves_have_an_interval_over_seeds_in_each_round(tmp_path):
    series = open_folder(repeated(tmp_path / "run")).series()[0]
    part = series.rows[series.rows["label"] == "llg"]
    means = over_rounds(part, MEASURES["asr"])
    assert list(means) == [1, 2, 3]
    assert all(one.seeds == 3 and one.low < one.mean < one.high for one in means.values())


def test_the_table_by_round_shows_utility_and_its_interval_in_the_same_unit(tmp_path):
    write_report(repeated(tmp_path / "run"))
    half = T2 * 0.01 / math.sqrt(3)
    text = (tmp_path / "run" / "report.html").read_text()
    assert f"0.68 [{0.68 - half:.3g}, {0.68 + half:.3g}]</td>" in text


@pytest.mark.parametrize(("rounds", "mode"), [(60, "lines+markers"), (61, "lines")])
def test_a_curve_of_many_rounds_is_a_line_without_markers(rounds, mode):
    one = Estimate(0.5, None, None, 1, 1)
    (line,) = curve(dict.fromkeys(range(rounds), one), "accuracy", {"color": "#000"}, "0")
    assert line["mode"] == mode


def test_a_run_without_seeds_in_its_points_keeps_its_seed(tmp_path):
    folder = repeated(tmp_path / "run", seeds=(7,))
    for name in ("findings.csv", "utility.csv"):
        path = folder / name
        path.write_text(path.read_text().replace("seed=7,", ""))
    opened = open_folder(folder)
    assert {*opened.rows["seed"]} == {*opened.utility["seed"]} == {"7"}
    assert len(read(folder)) == len(opened.rows)
    assert next(one for one in summary(folder) if one["against"])["pairs"] == 6


def test_the_terminal_shows_means_intervals_and_differences(tmp_path):
    console = Console(width=200, record=True)
    print_summary(console, repeated(tmp_path / "run"))
    lines = console.export_text().splitlines()
    first = next(line for line in lines if line.strip().startswith("0.1 "))
    assert "20 % [15, 25] (30 %)" in first
    less = next(line for line in lines if line.strip().startswith("defenses.0.sigma=0.1"))
    assert "-70.0 points [-70.0, -70.0]" in less
    assert any("Less the point defenses.0.sigma=0.0" in line for line in lines)
    assert lines[-1] == "means over 3 seeds; in square brackets their 95 % interval"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ((1.0, 0.3), "llg: leaks at 1 of 2 points: sigma=0"),
        ((1.0, 1.0), "llg: leaks at 2 of 2 points"),
        ((0.3, 0.3), "llg: leaks at none of 2 points"),
        ((1.0,) * 7 + (0.3,), "llg: leaks at 7 of 8 points: sigma=0; sigma=1; sigma=2; sigma=3; "
         "3 more"),
    ],
)  # fmt: skip
def test_the_terminal_says_at_which_points_an_adversary_leaks(tmp_path, values, said):
    points = [f"sigma={number}" for number in range(len(values))]
    rows = [
        row(1, client, value=value, point=point)
        for point, value in zip(points, values, strict=True)
        for client in range(20)
    ]
    console = Console(width=200, record=True)
    print_summary(console, written(tmp_path, *rows, points=points))
    assert said in console.export_text().splitlines()


def test_a_share_that_is_always_1_has_one_interval_in_the_table_and_in_the_verdict(tmp_path):
    rows = [
        row(1, client, value=1.0, seed=seed, point=f"seed={seed}")
        for seed in (7, 8, 9)
        for client in range(20)
    ]
    folder = written(tmp_path, *rows, points=[f"seed={seed}" for seed in (7, 8, 9)])
    (leaked,), (verdict,) = summary(folder), verdicts(folder)
    assert leaked["mean"] == verdict["mean"] == 1
    assert (leaked["low"], leaked["high"]) == (verdict["low"], verdict["high"])
    assert 0.5 < leaked["low"] < 0.95


def after_leaks_at_none(tmp_path, rows):
    """The terminal's line below the one that says that an adversary leaks at no point."""
    console = Console(width=200, record=True)
    print_summary(console, written(tmp_path, *rows, points=["sigma=0", "sigma=1"]))
    said = console.export_text().splitlines()
    return said[said.index("llg: leaks at none of 2 points") + 1]


def test_the_terminal_says_where_an_adversary_beats_chance_without_a_verdict(tmp_path):
    rows = [
        row(1, client, value=0.6, point=point, baseline_prior=0.6)
        for point in ("sigma=0", "sigma=1")
        for client in range(20)
    ]
    said = after_leaks_at_none(tmp_path, rows)
    assert said.startswith("llg: better than chance, not shown to be better")
    assert said.endswith("sigma=0; sigma=1")


def test_the_terminal_says_where_an_adversary_has_no_chance_level(tmp_path):
    rows = [
        row(1, client, point=point, baseline="", baseline_prior="")
        for point in ("sigma=0", "sigma=1")
        for client in range(20)
    ]
    said = after_leaks_at_none(tmp_path, rows)
    assert said == "llg: not known: no metric with a chance level: sigma=0; sigma=1"


def test_the_terminal_reads_a_run_once(tmp_path, monkeypatch):
    folder, read = repeated(tmp_path / "run"), []
    monkeypatch.setattr(report, "open_folder", lambda path: read.append(path) or open_folder(path))
    print_summary(Console(width=200, record=True), folder)
    assert read == [folder]


def test_a_single_setting_with_seeds_is_summarised_over_them(tmp_path):
    console = Console(width=200, record=True)
    folder = repeated(tmp_path / "run", sigmas=("0.1",))
    for name in ("findings.csv", "utility.csv"):
        path = folder / name
        path.write_text(path.read_text().replace(",defenses.0.sigma=0.1", "").replace('"', ""))
    print_summary(console, folder)
    text = console.export_text()
    assert "in the end: accuracy 68 % [65.5, 70.5]" in text
    assert "20 % [15, 25]" in text
    page = page_of(folder)
    assert "It was run with 3 seeds." in page
    assert '<select id="point">' not in page
