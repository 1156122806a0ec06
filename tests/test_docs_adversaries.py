"""Every adversary has a page, and all pages answer the same six questions in the same order."""

import re
import shlex
from pathlib import Path

import pytest

from fedsim.plugin import names

PAGES = Path(__file__).parent.parent / "docs" / "adversaries"
SCENARIOS = Path(__file__).parent.parent / "scenarios"
HEADINGS = ["What leaks", "From what", "Assumptions", "Cost", "How well", "Example"]
SHARED = {
    **dict.fromkeys(("bias-signs", "idlg", "min-column", "random"), "label-baselines"),
    **dict.fromkeys(("dlg-text", "tag"), "lamp"),
}
"""Adversaries that are described on the page of another name."""
ALL = sorted(page for page in PAGES.glob("*.md") if page.name != "README.md")


def sections(page: Path) -> dict[str, str]:
    """The text below each heading of the second level; lines of code blocks are no headings."""
    found: dict[str, str] = {}
    title, in_code = "", False
    for line in page.read_text().splitlines():
        in_code ^= line.startswith("```")
        if line.startswith("## ") and not in_code:
            title = line[3:]
            assert title not in found, f"{page.name} has two headings '{title}'"
        found[title] = found.get(title, "") + line + "\n"
    return found


def test_each_adversary_has_one_page():
    pages = {SHARED.get(name, name) for name in names("adversaries")}
    assert {page.stem for page in ALL} == pages


@pytest.mark.parametrize("name", names("adversaries"))
def test_a_page_names_its_adversary_in_its_title(name):
    title = (PAGES / f"{SHARED.get(name, name)}.md").read_text().splitlines()[0]
    assert name in re.split(r", | and ", title.removeprefix("# "))


@pytest.mark.parametrize("name", names("adversaries"))
def test_the_page_of_gpus_says_where_an_adversary_computes(name):
    text = (PAGES.parent / "gpus.md").read_text()
    table = re.findall(r"^\| (?:the GPU|both|the CPU, by design) \| (.*) \|$", text, re.MULTILINE)
    assert len(table) == 3
    assert sum(f"`{name}`" in row for row in table) == 1, f"name {name} in one row of its table"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_six_headings_in_order(page):
    assert [title for title in sections(page) if title] == HEADINGS


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_how_well_is_a_table_with_measured_numbers(page):
    text = sections(page)["How well"]
    _, rule, rows = text.partition("\n| ---")
    assert rule, f"{page.name}: no table under 'How well'"
    assert re.search(r"^\| .*\d", rows, re.MULTILINE), f"{page.name}: a table without numbers"
    assert "CPU" in text, f"{page.name}: say on what it was measured"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_the_example_runs_a_scenario_with_one_of_the_pages_adversaries(page):
    text = sections(page)["Example"]
    commands = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()
    ]
    assert commands, f"{page.name}: no command under 'Example'"
    own = {name for name in names("adversaries") if SHARED.get(name, name) == page.stem}
    named = set()
    for command in commands:
        program, verb, scenario, *rest = shlex.split(command)
        assert (program, verb in ("run", "check")) == ("fedsim", True), command
        file = SCENARIOS / f"{scenario}.toml"
        assert file.is_file(), f"{command}: no scenario of that name is shipped"
        plan = " ".join(rest) if 'name="' in " ".join(rest) else file.read_text()
        named |= {name for name in own if re.search(rf'name ?= ?"{re.escape(name)}"', plan)}
    assert named == own, f"{page.name}: no example of {sorted(own - named)}"
