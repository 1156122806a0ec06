"""The tool that brings a committed page of results up to date."""

import importlib.util
import sys
from pathlib import Path

FILE = Path(__file__).parent.parent / "benchmarks" / "results_page.py"


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
    found = tool().updated(PAGE, [("paper", runs)])
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
    assert tool().updated(PAGE, [("paper", runs)]) == PAGE
