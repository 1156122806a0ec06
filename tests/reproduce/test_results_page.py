"""The tool that brings a committed page of results up to date."""

import importlib.util
import sys
from pathlib import Path

import pytest

ASKED = {"p/fig2": 5, "p/fig3": 100, "p/tab1": 1}
FILE = Path(__file__).parents[2] / "benchmarks" / "results_page.py"


def tool():
    spec = importlib.util.spec_from_file_location("results_page", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def section(key, seeds, note="", body="| 1 |"):
    return (
        f"## {key}{note}: A title: with colons\n\nrun: data x; seeds {seeds}; device y.\n\n{body}\n"
    )


PAGE = "\n".join(
    [
        "# Paper\n\nIntroduction.\n",
        section("p/fig1", "7 to 11", " (smoke scale)", "old one"),
        section("p/fig3", "7 to 33", " (paper scale, 27 of its repetitions)", "old three"),
        "## Not measured yet\n\n- p/fig2: Two\n- p/fig4: Four\n",
    ]
)


def test_more_repetitions_replace_fewer_and_new_figures_take_their_place():
    runs = "\n".join(
        ["# head\n", section("p/fig2", "7"), section("p/fig3", "7 to 106", body="new three")]
    )
    found = tool().updated(PAGE, [("paper", runs)], ASKED)
    assert found.startswith("# Paper\n\nIntroduction.\n")
    assert "old one" in found
    assert "old three" not in found
    assert "## p/fig3 (paper scale): A title: with colons" in found
    assert "## p/fig2 (paper scale, 1 of its repetitions): A title" in found
    assert found.index("p/fig1") < found.index("p/fig2 (") < found.index("p/fig3")
    assert "- p/fig2" not in found
    assert "- p/fig4: Four" in found


def test_fewer_repetitions_change_nothing():
    runs = section("p/fig3", "7 to 9", body="fewer")
    assert tool().updated(PAGE, [("paper", runs)], ASKED) == PAGE


def test_what_is_complete_counts_and_not_the_last_seed():
    longest = section("p/fig3", "7 to 9; seeds in part 10 to 106", body="reaches far")
    assert tool().updated(PAGE, [("paper", longest)], ASKED) == PAGE
    gaps = section("p/fig3", "7 to 26, 30, 40 to 59", body="with gaps")
    found = tool().updated(PAGE, [("paper", gaps)], ASKED)
    assert "## p/fig3 (paper scale, 41 of its repetitions): A title" in found
    two = section("p/fig3", "7 to 106", body="run: data y; seeds 7 to 10; device z.")
    assert "(paper scale, 4 to 100 of its repetitions)" in tool().updated(
        PAGE, [("paper", two)], ASKED
    )


def test_a_smoke_section_goes_when_paper_scale_is_whole():
    assert "(smoke scale)" in tool().updated(
        PAGE, [("paper", section("p/fig1", "7"))], {"p/fig1": 5}
    )
    found = tool().updated(PAGE, [("paper", section("p/fig1", "7 to 11"))], {"p/fig1": 5})
    assert "## p/fig1 (paper scale): A title" in found
    assert "(smoke scale)" not in found


@pytest.mark.parametrize(
    "facts", ["two: data x; device y.", "two: data x; seeds in part 7; device y."]
)
def test_a_smoke_section_stays_while_a_scenario_of_the_figure_was_not_run(facts):
    runs = section("p/fig1", "7 to 11", body=f"{facts}\n\n| 2 |")
    assert "(smoke scale)" in tool().updated(PAGE, [("paper", runs)], {"p/fig1": 5})


def test_how_many_repetitions_are_asked_for_is_the_scenarios_word():
    found = tool().asked()
    assert (found["llg/fig4a"], found["rlg/table3-both"]) == (100, 3)


def test_a_list_that_has_lost_its_last_line_goes():
    page = PAGE + "\n## Measured elsewhere\n\n- p/tab1: [there](there.md)\n"
    assert "## Measured elsewhere" in tool().updated(
        page, [("paper", section("p/fig2", "7"))], ASKED
    )
    found = tool().updated(page, [("paper", section("p/tab1", "7"))], ASKED)
    assert "Measured elsewhere" not in found
    assert "- p/fig4: Four" in found


def test_intervals_of_fewer_than_three_seeds_are_labelled_once():
    head = "| measure | place | ours | n | verdict |\n| --- | --- | --- | --- | --- |\n"
    interval = "\\[0.1, 0.3\\]"
    old = f"| Error | \\[0.3,0.45\\] | 0.2 {interval} | 20 | agrees |\n"
    new = f"| Error | a | 0.2 {interval} over victims of one network | 4, 1 seed |  |\n"
    whole = f"| Error | b | 0.2 {interval} | 9, 3 seeds |  |\n"
    page = section("p/fig1", "7 to 8", body=head + old + new + whole)
    found = tool().updated(page, [], ASKED)
    assert f"| \\[0.3,0.45\\] | 0.2 {interval} over victims of 2 networks | 20 |" in found
    assert new in found
    assert whole in found
    assert tool().updated(found, [], ASKED) == found


TABLES = """
[[table]]
name = "Table 3"
ids = ["p/fig1", "p/fig3"]
claim = "LLG* finds all."
reading = "It does."
why = "Since labels leak."

[[table]]
name = "Figure 1"
ids = ["p/fig1"]
claim = "So does LLG."
"""


def test_claims_stand_below_headings_once_and_readings_below_the_first_figure():
    below = tool().heads(TABLES)
    found = tool().updated(PAGE, [], ASKED, below)
    assert found.split("## p/fig1 (smoke scale): A title: with colons\n\n")[1].startswith(
        "Claimed in table 3: LLG\\* finds all.\n\n"
        "Reading of table 3: It does. Since labels leak.\n\n"
        "Claimed in figure 1: So does LLG.\n\n"
        "run: data x; seeds 7 to 11;"
    )
    assert found.count("Claimed in table 3") == 2
    assert found.count("Reading of") == 1
    assert tool().updated(found, [], ASKED, below) == found
    assert tool().updated(found, [], ASKED, {}) == PAGE
