"""Reproductions: real runs on the embedded digits, resumed, tabled, judged."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from rich.console import Console
from tiny import rows
from typer.testing import CliRunner

from adversaries import LLG
from fedsim.cli import app, list_
from fedsim.errors import ScenarioError
from fedsim.paper import Paper, Published
from fedsim.reproduce import choose, figures, locked, outcome
from fedsim.reproduce.cells import Cell, Place, places, series
from fedsim.reproduce.console import listing, reproduce
from fedsim.reproduce.picture import picture
from fedsim.reproduce.verdict import judge, shown, speaks_of
from fedsim.scenario import FOLDER, Scenario

TOML = """
description = "tiny"
seed = 3
[paper]
id = "test/{id}"
title = "Labels by batch size"
measure = {measure}
x = "{x}"
repetitions = 3
needs = "a data set of the moon"
remark = "the model is smaller"
{paper}
[paper.scale.paper]
"paper.repetitions" = 4
"sweep" = {{"training.batch_size" = [1, 4, 8]}}
{published}
[task]
data = "{data}"
composition = "unbalanced"
test_examples = 20
[training]
algorithm = "fedsgd"
rounds = {rounds}
clients = 1
[[adversaries]]
name = "llg"
[[adversaries]]
name = "idlg"
[engine]
workers = 1
[sweep]
"training.batch_size" = [1, 4]
"""
PUBLISHED = """
[[paper.published]]
series = ["llg"]
at_least = 0.9
[[paper.published]]
series = ["idlg"]
at = {"training.batch_size" = 1}
value = 1.0
source = "table"
[[paper.published]]
series = "llg"
at = {"training.batch_size" = [1, 4]}
at_most = 0.1
"""


def toml(folder: Path, name: str = "tiny", **changes: object) -> str:
    settings: dict[str, object] = {
        "id": "tiny",
        "measure": '"asr"',
        "x": "training.batch_size",
        "data": "digits",
        "rounds": 1,
        "paper": "",
        "published": PUBLISHED,
    }
    path = folder / f"{name}.toml"
    path.write_text(TOML.format(**{**settings, **changes}))
    return str(path)


@pytest.fixture
def attacked(monkeypatch):
    """How often LLG really ran, by size of the batch."""
    count: Counter[int] = Counter()
    plain = LLG.reconstruct

    def counted(self, seen, job):
        count[seen.num_examples] += 1
        return plain(self, seen, job)

    monkeypatch.setattr(LLG, "reconstruct", counted)
    return count


def table(markdown: str, head: str) -> list[list[str]]:
    """The rows of the Markdown table whose head begins so."""
    text = markdown.split(f"| {head} |", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]


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


def key(row: dict[str, str]) -> tuple[str, str]:
    return row["point"].rpartition("=")[2], row["label"]


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
    text = reproduce(source, out, play=False)[0].read_text()
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
    for play in (True, False):
        text = reproduce(source, out, overrides=["task.model=lenet"], play=play)[0].read_text()
        assert "was run with another scenario than this one, which differs in task" in text
        assert {row[3] for row in table(text, "measure")} == {"–"}
    assert attacked.total() == there


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
    text = reproduce("test/tiny", tmp_path / "out")[0].read_text()
    assert "needs a data set of the moon: data 'moon' is looked up in a folder" in text
    assert [row[-1].split(":")[0] for row in table(text, "measure")[:3]] == ["not measured"] * 3
    assert table(text, "measure")[4][-1] == "agrees"
    assert [row[-1] for row in table(text, "batch size")] == ["3", "3"]
    looked = reproduce("test/tiny", tmp_path / "out", data=str(tmp_path))[0].read_text()
    assert "no data 'moon' in --data" in looked
    assert str(tmp_path) not in looked


def test_a_gpu_that_is_not_there_reads_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    gpu = ["engine.gpus_per_attack=1"]
    text = reproduce(toml(tmp_path), tmp_path / "out", overrides=gpu)[0].read_text()
    assert "needs a GPU" in text
    assert [row[3:5] for row in table(text, "measure")] == [["–", "0"]] * 3


def test_show_runs_nothing_and_neither_does_a_second_process(tmp_path, attacked):
    source, out = toml(tmp_path), tmp_path / "out"
    text = reproduce(source, out, play=False)[0].read_text()
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


# --- verdicts -----------------------------------------------------------------------------------


def cell(mean: float, low: float | None, high: float | None, n: int = 9, at: float = 8.0) -> Cell:
    return Cell("asr", "llg", Place(at, frozenset({f"{at:g}"})), n, mean, low, high)


@pytest.mark.parametrize(
    ("said", "ours", "verdict"),
    [
        ({"value": 0.9}, (0.88, 0.85, 0.91), "agrees"),
        ({"value": 0.9}, (0.8, 0.75, 0.85), "differs by -10.0 points at 8: why"),
        ({"value": 0.9, "tolerance": 0.06}, (0.8, 0.75, 0.85), "agrees"),
        ({"at_least": 0.98}, (0.97, 0.95, 0.98), "agrees"),
        ({"at_least": 0.98}, (0.9, 0.88, 0.92), "differs by -8.0 points at 8: why"),
        ({"at_most": 0.3}, (0.1, 0.05, 0.15), "agrees"),
        ({"at_most": 0.3}, (0.5, 0.4, 0.6), "differs by +20.0 points at 8: why"),
        ({"between": [0.5, 0.6]}, (0.7, 0.55, 0.8), "agrees"),
        ({"value": 0.9}, (0.9, None, None), "too few repetitions to say"),
        (
            {"value": 0.9},
            (0.8, None, None),
            "too few repetitions to say (off by -10.0 points at 8, n = 9): why",
        ),
    ],
)
def test_a_verdict_compares_the_interval_with_the_statement(said, ours, verdict):
    assert judge(Published(**said), "asr", "llg", [cell(*ours)], remark="why").text == verdict


def test_a_verdict_says_where_no_attack_succeeded():
    said, good = Published(value=1.0), cell(1.0, 1.0, 1.0, at=1.0)
    found = judge(said, "asr", "llg", [good], ["8"], fruitless=["2", "4"], remark="why")
    assert found.outcome == "differs"
    assert found.text == (
        "agrees at the other 1; no attack succeeded at 2, 4: why; not measured at 8 yet"
    )
    assert judge(said, "asr", "llg", [], fruitless=[""]).text == "no attack succeeded"


def test_a_verdict_over_several_places_names_those_that_differ():
    cells = [cell(1.0, 1.0, 1.0, at=1.0), cell(0.5, 0.4, 0.6, at=2.0)]
    said = Published(at_least=0.9)
    found = judge(said, "asr", "llg", cells, missing=["4"])
    assert found.outcome == "differs"
    assert found.text == (
        "differs by -40.0 points at 2; agrees at the other 1; not measured at 4 yet"
    )
    nothing = judge(said, "asr", "llg", [], ["1"], problem="no such data")
    assert nothing.text == "not measured: no such data"


def test_a_statement_says_one_thing_about_places_it_names():
    with pytest.raises(ValueError, match="exactly one"):
        Published(value=1.0, at_least=0.5)
    with pytest.raises(ValueError, match="exactly one"):
        Published()
    with pytest.raises(ValueError, match="lower number first"):
        Published(between=[2.0, 1.0])
    here = Place(8.0, frozenset({"8"}))
    assert speaks_of(Published(value=1.0), here, "b")
    assert speaks_of(Published(value=1.0, at={"b": [4, 8]}), here, "b")
    assert not speaks_of(Published(value=1.0, at={"b": 4}), here, "b")
    assert shown(Published(between=[0.55, 0.9]), "asr") == "55 % to 90 %"
    assert shown(Published(at_most=54.0, tolerance=1.0), "seconds") == "≤ 54 s ± 1 s"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": "training.lr"}, "expected a key of the sweep"),
        (
            {"measure": '"asr"', "published": PUBLISHED.replace("at_least", "at_leest")},
            "Did you mean 'at_least'",
        ),
        (
            {"published": '[[paper.published]]\nvalue = 1.0\nat = {"training.lr" = 1}'},
            'names "training.lr"; the axis is "training.batch_size"',
        ),
        ({"published": '[[paper.published]]\nvalue = 1.0\nmeasure = "f1"'}, "is none of asr"),
        ({"id": "No Id"}, "paper"),
    ],
)
def test_a_mistake_in_the_table_is_an_error_that_says_so(change, words, tmp_path):
    with pytest.raises(ScenarioError, match=re.escape(words)):
        Scenario.load(toml(tmp_path, **change))


# --- what comes with fedsim ---------------------------------------------------------------------

SHIPPED = sorted(path.stem for path in (FOLDER / "papers").glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_every_shipped_statement_speaks_of_a_series_and_a_place(name, scale):
    run = Scenario.load(f"papers/{name}", scale=scale)
    paper = run.paper
    assert paper is not None
    assert paper.id.partition("/")[0] == name.partition("-")[0]
    there = list(places(run).values())
    for said in paper.published:
        known = {*series(run, said.measure or paper.measure[0]).values()}
        assert {*said.series} <= known | {"*"}, f"{said.series} of {known}"
        assert any(speaks_of(said, place, paper.x) for place in there), said.at
        for value in said.at.values():
            for one in value if isinstance(value, list) else [value]:
                alone = said.model_copy(update={"at": {paper.x: one}})
                assert any(speaks_of(alone, place, paper.x) for place in there), one


def test_recordings_of_every_shipped_scenario_go_round_among_its_clients(real_data):
    clients = {}
    for name in SHIPPED:
        for scale in ("smoke", "paper"):
            run = Scenario.load(f"papers/{name}", data=str(real_data), scale=scale)
            data = str(run.task.get("data", "voices"))
            if run.task.get("name") != "speech" or data == "voices" or data.startswith("hub:"):
                continue
            for point in run.points().values():
                clients[name, scale] = len(point.build_task().shares)
    assert clients["rlg-librispeech", "smoke"] == 22
    assert clients["rlg-librispeech", "paper"] == 96


def test_every_shipped_figure_has_a_title_and_is_listed():
    console = Console(record=True, width=250)
    listing(console)
    text = console.export_text()
    for id, figure in figures().items():
        assert figure.title != id
        assert id in text
    with pytest.raises(ScenarioError, match="Did you mean 'llg"):
        choose("llgg")


def test_scenarios_of_papers_are_listed_by_figure_and_not_one_by_one(capsys):

    list_("scenarios")
    told = capsys.readouterr().out
    assert "quickstart" in told
    assert "papers/" not in told
    assert "fedsim reproduce" in told


def test_a_picture_has_our_curves_chance_and_the_published_marks(tmp_path):
    source, out = toml(tmp_path), tmp_path / "out"
    reproduce(source, out)
    (figure,) = choose(source)
    drawn = picture(outcome(figure, out, "smoke"), "asr")
    names = [trace.get("name", "band") for trace in drawn["data"]]
    assert {"llg", "idlg", "random guess", "llg: published ≥ 90 %"} <= {*names}
    assert tomllib.loads(Path(source).read_text())["paper"]["x"] == "training.batch_size"


def test_every_key_of_the_table_is_documented():
    page = (Path(__file__).parent.parent / "docs" / "reproduce.md").read_text()
    for prefix, model in (("paper.", Paper), ("paper.published.N.", Published)):
        missing = [key for key in model.model_fields if f"`{prefix}{key}" not in page]
        assert missing in ([], ["published"])


def test_the_command_line_prints_ours_and_where_the_pages_are(tmp_path):
    arguments = ["reproduce", toml(tmp_path), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--set", "paper.repetitions=1"])
    assert done.exit_code == 0, done.output
    assert "Labels recovered" in done.output
    assert "smoke.html" in done.output
    again = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "--show"])
    assert "too few repetitions" in " ".join(again.output.split())


def test_only_rounds_that_are_attacked_are_places(tmp_path):
    published = '[[paper.published]]\nseries="llg, 4"\nat_least=0.0\n'
    changes = {"x": "round", "rounds": 4, "measure": '["asr", "accuracy"]', "published": published}
    source, out = toml(tmp_path, **changes), tmp_path / "out"
    overrides = ["paper.repetitions=1", "threat.rounds=[1, 4]"]
    text = reproduce(source, out, overrides=overrides)[0].read_text()
    assert "not measured" not in table(text, "measure")[0][-1]
    (figure,) = choose(source)
    found = outcome(figure, out, "smoke", overrides=overrides)
    assert {(c.measure, c.place.where) for c in found.shares[0].cells} == {
        (measure, at) for measure in ("asr", "accuracy") for at in ("1", "4")
    }
