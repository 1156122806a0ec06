"""The `[paper]` table of a scenario: which figure it reproduces, and what the paper says there.

Commentary, not settings: nothing in it changes what a run computes.
"""

import copy
import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.plugin import validated
from fedsim.scenario.settings import Table

__all__ = ["SCALES", "Paper", "Published", "scaled"]

SCALES = ("smoke", "paper")
"""Smoke: the scenario as written, minutes on a CPU. Paper: with `paper.scale.paper` on top."""


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
    """One statement or point of the paper, about the mean of a measure; all values in its units.

    Exactly one of value, at_least, at_most, between and like says what is published. A limit may be
    "chance": what a random guess scores on the same victims. Where a paper says that two series
    hardly differ, the one is to be `like` the other, as that came out here.
    """

    series: Names = Field(default=["*"])
    """Names of series, or "*" for all of them."""

    measure: str = ""
    """The paper's first measure where left out."""

    at: dict[str, Any] = Field(default={})
    """Where on the axis: a value, or a list of them; left out: all along."""

    value: float | None = None
    at_least: float | Literal["chance"] | None = None
    at_most: float | Literal["chance"] | None = None
    between: list[float] | None = Field(default=None, min_length=2, max_length=2)
    like: str | None = None
    """The series of ours that these are close to."""

    tolerance: float = Field(default=0.0, ge=0)
    """How far off a number may be, one read off a plot, say."""

    source: Literal["text", "plot", "table"] = "text"
    remark: str = ""
    """What is to be known of it, whatever the verdict; below the table."""

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
        """The interval that agrees with it, tolerance included; either end may be infinite.

        other: the mean of the series that it is to be like.
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
    """Which figure or table of which paper a scenario reproduces."""

    id: Annotated[str, AfterValidator(_figure)]
    """ "PAPER/FIGURE"; several scenarios may share one, each adding series to it."""

    title: str = ""
    """Of the figure; the first scenario with one names it."""

    measure: Names = Field(min_length=1)
    """Metrics of the findings, "seconds" or "iterations_to_success" of an attack, utility
    metrics such as "accuracy", or one with "_change" for its difference to the first point
    of the axis."""

    x: str = ""
    """The axis: a key of the sweep, or "round"; the other keys of the sweep and the
    adversaries' labels make the series."""

    pool: list[str] = Field(default=[])
    """Keys of the sweep that neither axis nor series tells apart."""

    weights: Literal["attacks", "labels"] = "attacks"
    """What counts the same in a mean: attacks, or "labels": an attack counts as often as its
    victim has different labels, as if those of all updates were pooled."""

    kind: Literal["curve", "bars", "table"] = "curve"
    repetitions: int = Field(default=5, ge=1)
    """seeds: seed, seed + 1, ...; each with new weights and batches."""

    bin: int = Field(default=1, ge=1)
    """Rounds averaged at each place of the axis, where x = "round"."""

    last: int = Field(default=1, ge=1)
    """Last rounds that a utility metric is the mean of."""

    needs: str = ""
    """What it takes that not everybody has, in words."""

    takes: str = ""
    """Roughly how long, and on what, in words."""

    remark: str = ""
    """Why ours differs; written after measuring."""

    scale: dict[Literal["paper"], dict[str, Any]] = Field(default={})
    """By scale, what changes: dotted keys as for --set."""

    published: list[Published] = Field(default=[])

    def complaints(self, sweep: Mapping[str, Collection[Any]]) -> list[str]:
        """What does not fit the scenario's sweep, in words."""
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
    """The values that a scale changes, by dotted key.

    Args:
        table: A scenario as its file has it.
        scale: One of `SCALES`.

    Raises:
        ScenarioError: There is no such scale, or the `[paper]` table is wrong.
    """
    if scale not in SCALES:
        raise ScenarioError(f"no scale '{scale}'. {did_you_mean(scale, SCALES)}")
    paper = table.get("paper")
    if scale == "smoke" or not isinstance(paper, dict):
        return {}
    changed = validated(Paper, paper, "paper").scale
    return copy.deepcopy(changed.get("paper", {}))
