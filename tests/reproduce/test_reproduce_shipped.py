"""The figures that come with fedsim: what they state is of places there are."""

from pathlib import Path

import pytest
from rich.console import Console

from fedsim.cli.list import list_
from fedsim.errors import ScenarioError
from fedsim.report.intervals import FEWEST
from fedsim.reproduce import choose, figures
from fedsim.reproduce.cells import places, series
from fedsim.reproduce.console import listing
from fedsim.reproduce.verdict import speaks_of
from fedsim.scenario import Scenario
from fedsim.scenario.files import FOLDER
from fedsim.scenario.paper import Paper, Published

FILES = sorted((FOLDER / "papers").rglob("*.toml"))
SHIPPED = [f"{path.parent.name}-{path.stem}" for path in FILES]


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
        assert said.like is None or said.like in known
        assert any(speaks_of(said, place, paper.x) for place in there), said.at
        for value in said.at.values():
            for one in value if isinstance(value, list) else [value]:
                alone = said.model_copy(update={"at": {paper.x: one}})
                assert any(speaks_of(alone, place, paper.x) for place in there), one


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("scale", ["smoke", "paper"])
def test_every_shipped_figure_has_an_interval_over_seeds(name, scale):
    paper = Scenario.load(f"papers/{name}", scale=scale).paper
    assert paper is not None
    assert paper.repetitions >= FEWEST == 3


def test_a_figure_has_a_file_in_the_folder_of_its_paper_and_two_names():
    for path, name in zip(FILES, SHIPPED, strict=True):
        run = Scenario.load(f"papers/{name}")
        assert run == Scenario.load(f"papers/{path.parent.name}/{path.stem}")
        assert run.name == name
    assert {part.name for figure in figures().values() for part in figure.parts} == set(SHIPPED)


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
    assert clients["rlg-librispeech", "smoke"] == 28
    assert clients["rlg-librispeech", "paper"] == 96


def test_every_shipped_figure_has_a_title_and_is_listed():
    console = Console(record=True, width=80)
    listing(console)
    text = console.export_text()
    for id, figure in figures().items():
        assert figure.title != id
        assert id in text
    with pytest.raises(ScenarioError, match="Did you mean 'llg"):
        choose("llgg")


def test_scenarios_of_papers_are_listed_by_figure_and_not_one_by_one(capsys):

    list_(["scenarios"])
    told = capsys.readouterr().out
    assert "quickstart" in told
    assert "papers/" not in told
    assert "fedsim reproduce" in told


def test_every_key_of_the_table_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    for prefix, model in (("paper.", Paper), ("paper.published.N.", Published)):
        missing = [key for key in model.model_fields if f"`{prefix}{key}" not in page]
        assert missing in ([], ["published"])
