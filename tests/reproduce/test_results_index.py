"""The index of results: the committed page is what its command makes, verdicts are read right."""

import importlib.util
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fedsim.metrics import installed
from fedsim.reproduce import figures
from fedsim.reproduce.cells import KNOWN
from fedsim.reproduce.console import listing
from fedsim.reproduce.tables import PAPERS, VERDICTS, tables

ROOT = Path(__file__).parents[2]
COUNTED = {"dlg": 8, "llg": 7, "lamp": 7, "rlg": 6, "hfgm": 13}
"""Tables and figures with measurements, as docs/results/README.md counts them."""


@pytest.fixture(scope="module")
def tool():
    path = list(sys.path)
    spec = importlib.util.spec_from_file_location(
        "results_index", ROOT / "benchmarks" / "results_index.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    for name in ("results_index", "results_page"):
        sys.modules.pop(name, None)


def test_the_committed_page_and_the_shipped_rows_are_what_the_command_makes(tool):
    made, page = tool.rows(), tool.INDEX.read_text()
    assert tool.index(page, made) == page, "run python benchmarks/results_index.py"
    assert tables() == made


def test_every_table_of_the_papers_has_a_row_that_its_scenarios_measure():
    found = tables()
    assert {paper: sum(row.paper == paper for row in found) for paper in PAPERS} == COUNTED
    assert len({(row.paper, row.table) for row in found}) == len(found) == 41
    for row in found:
        assert row.ids
        assert {*row.ids} <= {*figures()}, row
        assert {id.partition("/")[0] for id in row.ids} == {row.paper}
        assert row.claim.endswith(".")
        assert {point.verdict for point in row.points} <= {*VERDICTS}
        assert row.why.endswith(".") or row.decisive.verdict in ("agrees", "too few", "no number")


def test_every_section_of_a_page_says_what_the_paper_claims(tool):
    below = sys.modules["results_page"].heads(tool.SOURCE.read_text())
    for paper in PAPERS:
        for section in tool.sections(paper):
            paragraphs = section.text.split("\n\n")[1:]
            own = below.get(section.key, [])
            assert paragraphs[: len(own)] == own, f"run benchmarks/results_page.py: {section.key}"


def test_numbers_of_a_point_are_those_of_its_section(tool):
    text = """## p/tab (paper scale): A title

p: data x; seeds 7; device y.

Labels recovered: Share of labels.

| batch size | llg\\* | n |
| --- | --- | --- |
| 1 | 100 % \\[99, 100\\] over victims of one network, n 20 | 20–30 |
| 8 | 40 % \\[30, 50\\] over victims of one network, n 30 | 20–30 |

| measure | series | batch size | ours | n | by chance | published | verdict |
| --- | --- | --- | --- | --- | --- | --- | --- |
| Labels recovered | llg\\* | all | 40 % to 100 % | 20–30 | 1 % | 90 % | differs by +9.0 points at 1; -40.0 points at 8 (1) |
"""  # noqa: E501
    section = tool.Section("p/tab", text)
    point = tool.Point("labels", "p/tab", "asr", "llg*", "all")
    found = tool.of_section(point, section)
    assert (found.ours, found.victims, found.scale) == ("40 % to 100 %", "20–30", "paper")
    at_8 = tool.Point("labels", "p/tab", "asr", "llg*", "all", show="last")
    found = tool.of_section(at_8, section).compared(at_8)
    assert (found.published, found.ours, found.victims) == ("90 %", "40 % [30, 50]", "30")
    assert (found.verdict, found.by) == ("differs", "by -40.0 points")
    nowhere = tool.Point("labels", "p/tab", "asr", "other", "all")
    assert tool.of_section(nowhere, section).verdict == "not measured"


@pytest.mark.parametrize(
    ("measure", "published", "text", "kind"),
    [
        ("asr", "80 %", "agrees (1)", "agrees"),
        ("asr", "80 %", "too few repetitions to say (off by -3.0 points, n = 2)", "too few"),
        ("asr", "80 %", "differs by +3.0 points at 1; +2.0 points at 2", "better"),
        ("asr", "80 %", "differs by +3.0 points at 1; -2.0 points at 2", "differs"),
        ("asr", "80 %", "differs by -3.0 points: since x; +1 more", "differs"),
        ("asr", "≤ 80 %", "differs by +3.0 points", "differs"),
        ("asr", "as llg ± 5 %", "differs by +3.0 points", "differs"),
        ("mae", "0.3", "differs by -0.1; agrees at the other 2", "better"),
        ("mae", "≥ 0.3", "differs by -0.1", "differs"),
        ("mae", "0.3", "differs by +0.1", "differs"),
        ("mae", "0.3", "no attack succeeded at 4: why", "differs"),
        ("mae", "0.3", "not measured: not run yet", "not measured"),
    ],
)
def test_a_difference_is_better_where_the_attack_recovers_more(
    tool, measure, published, text, kind
):
    assert tool.kind(text, published, installed()[measure].shown) == kind


def test_less_accuracy_lost_is_no_better_attack(tool):
    how = KNOWN["accuracy_change"]
    assert tool.kind("differs by +26.4 points", "-31 %", how) == "differs"


def test_the_listing_has_every_table_with_its_verdict_and_times():
    console = Console(record=True, width=200)
    listing(console)
    text = console.export_text()
    for row in tables():
        assert row.claim in text
        assert f"{row.decisive.ours}; published {row.decisive.published}" in text
    lines = text.splitlines()
    assert any(line.split() == ["llg/fig7d", "5", "minutes;", *line.split()[3:]] for line in lines)
    assert lines.index("Other figures") < next(n for n, x in enumerate(lines) if "lamp/prior" in x)
