"""Reproductions: real runs on the embedded digits, resumed, tabled, drawn."""

import re

import pytest
from rich.console import Console
from support.tiny import rows
from support.tiny_figures import key, table, toml

from adversaries import LLG
from fedsim.cli import main
from fedsim.errors import ScenarioError
from fedsim.reproduce import choose, locked, outcome
from fedsim.reproduce.console import reproduce


def test_ours_stands_beside_what_is_published(tmp_path, attacked):
    markdown, page = reproduce(toml(tmp_path), tmp_path / "out")
    assert attacked == {1: 3, 4: 3}
    found = [row for row in rows(tmp_path / "out/test/tiny/smoke/tiny") if row["metric"] == "asr"]
    assert {row["point"] for row in found} == {
        f"seed={seed},training.batch_size={size}" for seed in (3, 4, 5) for size in (1, 4)
    }
    mean = {
        size: sum(float(row["value"]) for row in found if key(row) == (size, "llg")) / 3
        for size in "14"
    }
    text = markdown.read_text()
    values = table(text, "batch size")
    assert [row[0] for row in values] == ["1", "4"]
    for row in values:
        assert row[1].startswith(f"{100 * mean[row[0]]:.3g} % \\[")
        assert row[-1] == "3"
    statements = table(text, "measure")
    assert [row[1] for row in statements] == ["llg", "idlg", "llg"]
    assert [row[-2] for row in statements] == ["≥ 90 %", "100 %", "≤ 10 %"]
    assert statements[1][3:] == ["100 % \\[100, 100\\]", "3", "10 %", "100 %", "agrees"]
    assert statements[2][-1].startswith("differs by +90.0 points at 1; +")
    assert statements[2][-1].endswith(": the model is smaller")
    for fact in ("digits (sha256", "seeds 3 to 5", "torch", "device"):
        assert fact in text
    html = re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL)
    assert "Labels by batch size" in html
    assert "data-figure" in html
    assert re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html) == []


def test_a_second_call_goes_on_where_the_first_was_interrupted(tmp_path, attacked, monkeypatch):
    source, out = toml(tmp_path), tmp_path / "out"
    plain, calls = LLG.reconstruct, []

    def stopping(self, seen, job):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return plain(self, seen, job)

    with monkeypatch.context() as patch:
        patch.setattr(LLG, "reconstruct", stopping)
        with pytest.raises(KeyboardInterrupt):
            reproduce(source, out)
    partial = (out / "test/smoke.md").read_text()
    assert [row[-1] for row in table(partial, "batch size")] == ["2", "1"]
    assert "; seeds 3; seeds in part 4; " in partial
    assert attacked.total() == 3
    reproduce(source, out)
    assert attacked.total() == 6
    reproduce(source, out)
    assert attacked.total() == 6
    whole = tmp_path / "whole"
    reproduce(source, whole)
    run = "test/tiny/smoke/tiny"
    timeless = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in rows(folder / run)]
        for folder in (out, whole)
    ]
    assert timeless[0] == timeless[1]
    assert rows(out / run, "utility.csv") == rows(whole / run, "utility.csv")


def test_a_run_killed_before_its_first_row_reads_not_measured(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out, overrides=["paper.repetitions=1"])
    run = out / "test/tiny/smoke/tiny"
    for name in ("findings.csv", "utility.csv", "points.csv"):
        head = (run / name).read_text().splitlines()[0]
        (run / name).write_text(head + "\n")
    text = reproduce(source, out, execute=False)[0].read_text()
    assert [row[-1] for row in table(text, "measure")] == ["not measured: not run yet"] * 3


def test_more_repetitions_and_places_are_added_to_what_is_there(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out, overrides=["paper.repetitions=1"])
    assert attacked == {1: 1, 4: 1}
    more = ["paper.repetitions=2", 'sweep={"training.batch_size"=[1,4,8]}']
    text = reproduce(source, out, overrides=more)[0].read_text()
    assert attacked == {1: 2, 4: 2, 8: 2}
    assert [row[-1] for row in table(text, "batch size")] == ["2", "2", "2"]
    assert "too few repetitions to say" in text
    # Fewer in the file than are there: nothing is thrown away.
    assert [row[-1] for row in table(reproduce(source, out)[0].read_text(), "batch size")] == [
        "3",
        "3",
    ]


def test_another_scenario_does_not_mix_with_what_is_there(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out, overrides=["paper.repetitions=1"])
    text = reproduce(source, out, overrides=["task.model=lenet"])[0].read_text()
    assert attacked.total() == 2
    assert text.count("was run with another scenario than this one, which differs in task") == 1
    assert [row[-1] for row in table(text, "measure")] == ["not measured: see above"] * 3


def test_a_scenario_changed_after_its_end_neither_shows_nor_keeps_old_numbers(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out)
    there = attacked.total()
    for execute in (True, False):
        text = reproduce(source, out, overrides=["task.model=lenet"], execute=execute)[
            0
        ].read_text()
        assert "was run with another scenario than this one, which differs in task" in text
        assert {row[3] for row in table(text, "measure")} == {"–"}
    assert attacked.total() == there


def test_a_recorded_scenario_that_cannot_be_read_costs_no_page(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out)
    (out / "test/tiny/smoke/tiny/scenario.toml").write_text("seed = \n")
    for execute in (False, True):
        text = reproduce(source, out, execute=execute)[0].read_text()
        assert text.count("scenario.toml cannot be read") == 1


@pytest.mark.parametrize(
    ("problem", "told"),
    [
        ("/data/a.csv: row 5 has fewer cells", "/data/a.csv: row 5 has fewer cells"),
        (f"/data/{'a' * 60}.csv: row 5 has fewer cells; mend it", "see above"),
        ("needs a data set of the moon: data 'moon' is looked up", "needs a data set of the moon"),
        ("2 of 6 points failed; the first, seed=3: NaN", "2 of 6 points failed"),
    ],
)
def test_a_verdict_tells_the_reason_and_not_its_place(problem, told, tmp_path):
    (figure,) = choose(toml(tmp_path))
    found = outcome(figure, tmp_path / "out", "smoke", problems={"tiny": problem})
    assert {one.text for one in found.judgements} == {f"not measured: {told}"}
    assert found.shares[0].problem == problem


def test_numbers_stay_when_another_figure_of_the_paper_is_run(tmp_path, monkeypatch, attacked):
    sources = [toml(tmp_path, "a", id="a"), toml(tmp_path, "b", id="b")]
    monkeypatch.setattr("fedsim.reproduce.catalogue.scenario_names", lambda: sources)
    out, once = tmp_path / "out", "paper.repetitions=1"
    reproduce("test/a", out, overrides=[once, "training.lr=0.5"])
    other = reproduce("test/b", out, overrides=[once])[0].read_text()
    assert "another scenario" not in other
    assert [row[-1] for row in table(other, "batch size")] == ["1", "1"]
    assert other.count("sha256") == 2
    chosen = reproduce("test/a", out, execute=False)[0].read_text()
    assert "a was run with another scenario than this one, which differs in training" in chosen
    assert str(tmp_path) not in chosen
    assert chosen.count("sha256") == 1


def test_scales_keep_folders_of_their_own(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    text = reproduce(source, out, "paper")[0].read_text()
    assert attacked == {1: 4, 4: 4, 8: 4}
    assert (out / "test/tiny/paper/tiny/findings.csv").is_file()
    assert not (out / "test/tiny/smoke").exists()
    assert "paper scale" in text
    with pytest.raises(ScenarioError, match="expected smoke or paper"):
        reproduce(source, out, "papper")


def test_data_that_is_not_there_reads_not_measured_and_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedsim.reproduce.catalogue.scenario_names",
        lambda: [toml(tmp_path, "a", data="moon"), toml(tmp_path, "b")],
    )
    monkeypatch.delenv("FEDSIM_DATA", raising=False)
    text = reproduce("test/tiny", tmp_path / "out")[0].read_text()
    assert "needs a data set of the moon: data 'moon' is looked up in a folder" in text
    assert [row[-1].split(":")[0] for row in table(text, "measure")[:3]] == ["not measured"] * 3
    assert table(text, "measure")[4][-1] == "agrees"
    assert [row[-1] for row in table(text, "batch size")] == ["3", "3"]
    looked = reproduce("test/tiny", tmp_path / "out", data=str(tmp_path))[0].read_text()
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path))
    named = reproduce("test/tiny", tmp_path / "out")[0].read_text()
    for page in (looked, named):
        assert "no data 'moon' in --data" in page
        assert str(tmp_path) not in page


def exit_status(monkeypatch, *words):
    """That of `fedsim reproduce`."""
    monkeypatch.setattr("sys.argv", ["fedsim", "reproduce", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_mistaken_setting_is_an_error_with_the_reason(tmp_path, monkeypatch, capsys):
    words = (toml(tmp_path), "--out", tmp_path / "out", "--set", "training.lrr=1")
    assert exit_status(monkeypatch, *words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "training.lrr" in last
    assert "Did you mean 'lr'?" in last
    assert not (tmp_path / "out").exists()


def test_a_setting_that_some_scenarios_of_a_paper_lack_is_no_error(tmp_path, monkeypatch, attacked):
    noisy = '[[defenses]]\nname = "gaussian-noise"\n'
    sources = [toml(tmp_path, "a"), toml(tmp_path, "b", published=noisy)]
    monkeypatch.setattr("fedsim.reproduce.catalogue.scenario_names", lambda: sources)
    setting = ["defenses.0.sigma=0.0", "paper.repetitions=1"]
    assert reproduce("test/tiny", tmp_path / "out", overrides=setting, strict=True)
    assert (tmp_path / "out/test/tiny/smoke/b/findings.csv").is_file()
    assert not (tmp_path / "out/test/tiny/smoke/a").exists()


def test_not_one_measured_row_is_an_error_with_the_reason_last(tmp_path, monkeypatch, capsys):
    source, out = toml(tmp_path, data="moon"), tmp_path / "out"
    assert exit_status(monkeypatch, source, "--out", out) == 1
    told = capsys.readouterr()
    assert told.out.startswith("test/tiny needs ")
    assert "page: " in told.out
    assert "not one row was measured. needs a data set of the moon" in told.err.splitlines()[-1]
    assert exit_status(monkeypatch, source, "--out", out, "--show") == 1
    told = capsys.readouterr()
    assert " needs " not in told.out
    assert "(--show runs nothing)" in told.err


def test_a_gpu_that_is_not_there_reads_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpu = ["engine.gpus_per_attack=1"]
    text = reproduce(toml(tmp_path), tmp_path / "out", overrides=gpu)[0].read_text()
    assert "needs a GPU" in text
    assert [row[3:5] for row in table(text, "measure")] == [["–", "0"]] * 3


def test_reasons_stand_below_a_narrow_table(tmp_path):
    console = Console(record=True, width=80)
    reproduce(toml(tmp_path), tmp_path / "out", console=console)
    told = console.export_text()
    assert told.count("(1)") == 2
    assert re.search(r"^\(1\) differs by \+.*: the model is smaller$", told, re.MULTILINE)


def test_show_runs_nothing_and_neither_does_a_second_process(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    text = reproduce(source, out, execute=False)[0].read_text()
    assert [row[-1] for row in table(text, "measure")] == ["not measured: not run yet"] * 3
    with locked(out / "test/tiny/smoke/.tiny.lock") as first:
        assert first
        console = Console(record=True, width=200)
        reproduce(source, out, console=console)
        assert "another process is at it" in console.export_text()
    assert not attacked


def test_a_client_that_fails_costs_its_point_alone(tmp_path, rogues):
    source = toml(tmp_path, measure='"accuracy"', rounds=2, published="")
    overrides = [
        "training.clients=3",
        'sweep={"defenses"=[[{name="faulty",how="raise"}],[]]}',
        'paper.x="defenses"',
        "paper.repetitions=1",
        "paper.published=[{at_least=0.0}]",
    ]
    text = reproduce(source, tmp_path / "out", overrides=overrides)[0].read_text()
    (statement,) = table(text, "measure")
    assert "not measured at faulty(how=raise)" in statement[-1]
    assert "1 of 2 points failed" in statement[-1]


def test_rounds_make_an_axis_and_utility_stands_beside_leakage(tmp_path):
    changes = {
        "x": "round",
        "rounds": 5,
        "measure": '["asr", "accuracy", "seconds"]',
        "paper": "bin = 2",
        "published": '[[paper.published]]\nseries="llg, 4"\nat={round=[5]}\nat_least=0.0\n',
    }
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    text = reproduce(source, out, overrides=["paper.repetitions=2"])[0].read_text()
    (figure,) = choose(source)
    found = outcome(figure, out, "smoke", overrides=["paper.repetitions=2"])
    cells = {(c.measure, c.series, c.place.where): c for c in found.shares[0].cells}
    assert {place for _, _, place in cells} == {"1.5", "3.5", "5"}
    assert cells["asr", "llg, 4", "1.5"].n == 4
    assert cells["asr", "llg, 4", "5"].n == 2
    assert cells["seconds", "idlg, 1", "5"].mean > 0
    told = rows(out / "test/tiny/smoke/tiny", "utility.csv")
    last = [
        float(row["value"])
        for row in told
        if (row["metric"], row["round"], row["point"][-1]) == ("accuracy", "5", "4")
    ]
    assert cells["accuracy", "4", "5"].mean == pytest.approx(sum(last) / 2)
    assert table(text, "measure")[0][2] == "5"


def test_a_change_is_taken_seed_by_seed_from_the_first_place(tmp_path):
    changes = {"measure": '["accuracy", "accuracy_change"]', "rounds": 2, "published": ""}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    reproduce(source, out)
    (figure,) = choose(source)
    cells = outcome(figure, out, "smoke").shares[0].cells
    means = {(cell.measure, cell.place.where): cell.mean for cell in cells}
    assert means["accuracy_change", "4"] == pytest.approx(
        means["accuracy", "4"] - means["accuracy", "1"]
    )
    assert ("accuracy_change", "1") not in means
