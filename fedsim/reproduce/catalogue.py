"""What can be reproduced: the figures and tables that scenarios with a `[paper]` table name."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.plugin import validated
from fedsim.scenario import Scenario, locate, read_table, scenario_names
from fedsim.scenario.paper import Paper

__all__ = ["GROWING", "Figure", "Part", "choose", "figures"]

GROWING = frozenset({"sweep", "victims"})
"""Keys that may change between two calls, in any table of the scenario.

The points of a sweep are told apart by their names, and how many clients are attacked changes
nothing that is found of any one of them.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One scenario of a figure. source: its name or path. table: the file as it is written."""

    source: str
    paper: Paper
    table: dict[str, Any]

    @property
    def name(self) -> str:
        """What its run folder is called: the file, or what a figure that comes with fedsim says."""
        if self.source.startswith("papers/") and "name" in self.table:
            return str(self.table["name"])
        return Path(self.source).name.removesuffix(".toml")

    @property
    def data(self) -> str:
        """The data set it names, at smoke scale."""
        task = self.table.get("task")
        return str(task.get("data", "digits")) if isinstance(task, dict) else "digits"

    def scenario(self, scale: str, overrides: Sequence[str] = (), data: str = "") -> Scenario:
        """The scenario at a scale; raises `ScenarioError`."""
        return Scenario.load(self.source, overrides, data=data or None, scale=scale)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of a paper: all scenarios that share its id, the plainest name first."""

    id: str
    parts: tuple[Part, ...]

    @property
    def title(self) -> str:
        """As its first scenario that has one calls it."""
        return next((part.paper.title for part in self.parts if part.paper.title), self.id)

    @property
    def data(self) -> list[str]:
        """The data sets it names, at smoke scale."""
        return list(dict.fromkeys(part.data for part in self.parts))

    def words(self, field: str) -> str:
        """What its scenarios say of one thing: `needs` or `takes`."""
        return "; ".join(dict.fromkeys(filter(None, (getattr(p.paper, field) for p in self.parts))))


def figures(sources: Sequence[str] | None = None) -> dict[str, Figure]:
    """Figures by id, of these scenarios or of all that come with fedsim.

    Raises `ScenarioError` for a file that cannot be read, or a `[paper]` table with a mistake.
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
    """The figures of a paper ("llg"), one of them ("llg/fig4a"), or that of a TOML file."""
    if Path(which).is_file():
        own = list(figures([which]).values())
        if not own:
            raise ScenarioError(f"{which} has no [paper] table that says what it reproduces")
        return own
    known = figures()
    chosen = [figure for id, figure in known.items() if which in (id, id.partition("/")[0])]
    if not chosen:
        papers = {id.partition("/")[0] for id in known}
        raise ScenarioError(
            f"nothing called '{which}' to reproduce. {did_you_mean(which, [*papers, *known])}"
        )
    return chosen
