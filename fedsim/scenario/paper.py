"""The `[paper]` table of a scenario: the reproduced figure, and the numbers published for it.

The table is commentary: nothing in it changes what a run computes.
"""

import copy
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.plugin import validated
from fedsim.scenario.settings import Table

SCALES = ("smoke", "paper")
"""Scales of a scenario: "smoke" is the file as written (minutes on a CPU), "paper" adds the changes
of `paper.scale.paper`."""


def _several(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_several)]


def _figure(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*/[a-z0-9][a-z0-9.-]*", value):
        raise ValueError(
            'expected "PAPER/FIGURE", such as "dlg/fig5": small letters, digits, dots, hyphens'
        )
    return value


class Published(Table):
    """A published value or statement about the mean of a measure, in the measure's unit.

    Exactly one of `value`, `at_least`, `at_most`, `between` and `like` gives what is published. A
    limit may be "chance": what a random guess scores on the same victims. `like` expresses that two
    series hardly differ: the mean is compared with our mean of the other series.
    """

    series: Names = Field(default=["*"])
    """Names of the series that it is about; "*": all."""

    measure: str = ""
    """Measure that it is about; the first one of the table if left out."""

    at: dict[str, Any] = Field(default={})
    """Place on the axis, by the axis' key: a value or a list of values; left out: everywhere."""

    value: float | None = None
    """The published number."""

    at_least: float | Literal["chance"] | None = None
    """Smallest number that agrees."""

    at_most: float | Literal["chance"] | None = None
    """Largest number that agrees."""

    between: list[float] | None = Field(default=None, min_length=2, max_length=2)
    """Smallest and largest number that agree."""

    like: str | None = None
    """Name of the series whose mean in our runs should be equal."""

    tolerance: float = Field(default=0.0, ge=0)
    """Largest difference that still agrees, such as the accuracy of reading a plot."""

    source: Literal["text", "plot", "table"] = "text"
    """Part of the paper that the statement is taken from."""

    remark: str = ""
    """Remark printed below the table, whatever the verdict."""

    @model_validator(mode="after")
    def _one_statement(self) -> "Published":
        given = [self.value, self.at_least, self.at_most, self.between, self.like]
        if sum(one is not None for one in given) != 1:
            raise ValueError("expected exactly one of value, at_least, at_most, between and like")
        if self.between is not None and self.between[0] > self.between[1]:
            raise ValueError(f"between = {self.between}: expected the lower number first")
        return self

    def bounds(
        self, chance: float | None = None, other: float | None = None
    ) -> tuple[float, float]:
        """Return the interval of means that agree with the statement, tolerance included.

        Args:
            chance: Score of a random guess, for a limit of "chance".
            other: Mean of the series that `like` names.

        Returns:
            Lower and upper end, which may be infinite.
        """
        low = high = self.value if self.like is None else other
        if self.between is not None:
            low, high = self.between
        if self.at_least is not None:
            low = chance if self.at_least == "chance" else self.at_least
        if self.at_most is not None:
            high = chance if self.at_most == "chance" else self.at_most
        return (
            float("-inf") if low is None else low - self.tolerance,
            float("inf") if high is None else high + self.tolerance,
        )


class Paper(Table):
    """The `[paper]` table: the figure or table that a scenario reproduces."""

    id: Annotated[str, AfterValidator(_figure)]
    """Name "PAPER/FIGURE"; several scenarios may share one, and each adds series to it."""

    title: str = ""
    """Title of the figure; that of the first of its scenarios that has one is used."""

    measure: Names = Field(min_length=1)
    """Measures: metrics of the findings, "seconds" or "iterations_to_success" of an attack,
    utility metrics such as "accuracy", or a utility metric with "_change" for its difference from
    the first point of the axis."""

    x: str = ""
    """Axis: a key of the sweep, or "round". The other keys of the sweep and the adversaries'
    labels distinguish the series."""

    pool: list[str] = Field(default=[])
    """Keys of the sweep over which results are pooled: neither axis nor series shows them."""

    weights: Literal["attacks", "labels"] = "attacks"
    """Weights of a mean: "attacks" weights all attacks alike; "labels" weights an attack by the
    number of different labels of its victim, as if the labels of all updates were pooled."""

    kind: Literal["curve", "bars", "table"] = "curve"
    """Form of the figure."""

    repetitions: int = Field(default=5, ge=1)
    """Number of runs with the seeds seed, seed + 1, ...; each has new weights and batches."""

    bin: int = Field(default=1, ge=1)
    """Number of rounds averaged at each place of the axis, if x = "round"."""

    last: int = Field(default=1, ge=1)
    """Number of last rounds over which a utility metric is averaged."""

    needs: str = ""
    """Requirements that not everybody has, as text."""

    takes: str = ""
    """Rough duration and the hardware, as text."""

    remark: str = ""
    """Explanation of differences from the paper, written after the runs."""

    scale: dict[Literal["paper"], dict[str, Any]] = Field(default={})
    """Changes of each scale: values by dotted key, as for --set."""

    published: list[Published] = Field(default=[])
    """Published values and statements."""

    def complaints(self, sweep: Mapping[str, Collection[Any]]) -> list[str]:
        """Return a message for each value that does not fit the scenario's sweep.

        Args:
            sweep: Values of the sweep, by dotted key.
        """
        found = []
        if self.x not in ("", "round", *sweep):
            found.append(
                f'paper.x = "{self.x}": expected a key of the sweep '
                f'({", ".join(sweep) or "there is none"}), or "round"'
            )
        found += [
            f'paper.pool names "{key}", which is no key of the sweep'
            for key in self.pool
            if key not in sweep
        ]
        for number, one in enumerate(self.published):
            found += [
                f'paper.published.{number}.at names "{key}"; the axis is "{self.x}"'
                for key in one.at
                if key != self.x
            ]
            if one.measure and one.measure not in self.measure:
                found.append(
                    f'paper.published.{number}.measure = "{one.measure}" is none of '
                    f"{', '.join(self.measure)}"
                )
        return found


def scaled(table: dict[str, Any], scale: str) -> dict[str, Any]:
    """Return the values that a scale changes, by dotted key.

    Args:
        table: A scenario as read from its file.
        scale: One of `SCALES`.

    Raises:
        ScenarioError: There is no such scale, or the `[paper]` table is invalid.
    """
    if scale not in SCALES:
        raise ScenarioError(f"no scale '{scale}'. {did_you_mean(scale, SCALES)}")
    paper = table.get("paper")
    if scale == "smoke" or not isinstance(paper, dict):
        return {}
    changed = validated(Paper, paper, "paper").scale
    return copy.deepcopy(changed.get("paper", {}))
