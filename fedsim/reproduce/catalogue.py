"""The figures and tables that can be reproduced, named by scenarios' `[paper]` tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.plugin import validated
from fedsim.scenario import Scenario, locate, read_table, scenario_names
from fedsim.scenario.paper import Paper

GROWING = frozenset({"sweep", "victims"})
"""Keys, in any table of the scenario, that may change between two calls.

The points of a sweep are identified by their names, and the number of victims does not change the
findings of any one victim.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One scenario of a figure.

    Attributes:
        source: The scenario's name or path.
        paper: Its `[paper]` table.
        table: The content of its file.
    """

    source: str
    paper: Paper
    table: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of its run folder: the `name` of a shipped scenario, else that of the file."""
        if self.source.startswith("papers/") and "name" in self.table:
            return str(self.table["name"])
        return Path(self.source).name.removesuffix(".toml")

    def scenario(self, scale: str, overrides: Sequence[str] = (), data: str = "") -> Scenario:
        """Load the scenario at a scale; raises `ScenarioError`."""
        return Scenario.load(self.source, overrides, data=data or None, scale=scale)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of a paper: all scenarios that share its id, sorted by name."""

    id: str
    parts: tuple[Part, ...]

    @property
    def paper(self) -> str:
        """The name of the paper, the first part of its id."""
        return self.id.partition("/")[0]

    @property
    def title(self) -> str:
        """The title in the first scenario that has one."""
        return next((part.paper.title for part in self.parts if part.paper.title), self.id)

    def words(self, field: str) -> str:
        """The texts of its scenarios in one field of `[paper]`, such as `needs` or `takes`."""
        return "; ".join(dict.fromkeys(filter(None, (getattr(p.paper, field) for p in self.parts))))


def figures(sources: Sequence[str] | None = None) -> dict[str, Figure]:
    """Find figures, by id.

    Args:
        sources: Names or paths of scenarios; None for all that ship with fedsim.

    Raises:
        ScenarioError: A file cannot be read, or a `[paper]` table has a mistake.
    """
    found: dict[str, list[Part]] = {}
    for source in scenario_names() if sources is None else sources:
        table = read_table(locate(source))
        if "paper" in table:
            paper = validated(Paper, table["paper"], f"{source}: paper")
            found.setdefault(paper.id, []).append(Part(source, paper, table))
    return {
        id: Figure(id, tuple(sorted(parts, key=lambda part: part.name)))
        for id, parts in sorted(found.items())
    }


def choose(which: str) -> list[Figure]:
    """Find the figures of a paper ("llg"), one figure ("llg/fig4a"), or the one of a TOML file.

    Raises:
        ScenarioError: There is no such figure, or the file has no `[paper]` table.
    """
    if Path(which).is_file():
        own = list(figures([which]).values())
        if not own:
            raise ScenarioError(f"{which} has no [paper] table, which states what it reproduces")
        return own
    known = figures()
    chosen = [figure for figure in known.values() if which in (figure.id, figure.paper)]
    if not chosen:
        papers = {figure.paper for figure in known.values()}
        raise ScenarioError(
            f"nothing called '{which}' to reproduce. {did_you_mean(which, [*papers, *known])}"
        )
    return chosen
