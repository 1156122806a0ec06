"""Verdicts: whether a measured mean agrees with a published statement, and the difference.

A cell agrees with a statement if its 95 % interval touches the numbers that the statement allows,
tolerance included. There is no verdict with fewer than three values, which have no interval, or if
the interval also contains the score of a random guess and the statement excludes that score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedsim.metric import Measure
from fedsim.report.intervals import change
from fedsim.reproduce.cells import Cell, Place
from fedsim.scenario.paper import Published

Outcome = Literal["agrees", "differs", "few", "not measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a series that a statement is about.

    Attributes:
        measure: The name of the measure.
        how: How its values are read.
        series: The name of the series.
        cells: The means at the places that the statement is about.
        missing: Places that were not measured.
        fruitless: Places without a mean because no attack there succeeded.
        others: Means of the series that this one is published to be like.
    """

    measure: str
    how: Measure
    series: str
    cells: tuple[Cell, ...]
    missing: tuple[str, ...] = ()
    fruitless: tuple[str, ...] = ()
    others: Mapping[Place, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One published statement beside one of our series.

    Attributes:
        published: The statement.
        measure: The name of the measure.
        series: The name of the series.
        places: All places that the statement is about.
        cells: The means at the places that were measured.
        outcome: The verdict.
        text: The verdict in words, without the statement's own remark, which is below the table.
    """

    published: Published
    measure: str
    series: str
    places: tuple[str, ...]
    cells: tuple[Cell, ...]
    outcome: Outcome
    text: str


def judge(
    published: Published, ours: Measured, *, remark: str = "", problem: str = ""
) -> Judgement:
    """Compare a published statement with what was measured.

    Args:
        published: The statement.
        ours: What was measured of one series.
        remark: Why the figure differs, by its scenario; ignored if the statement has a remark.
        problem: Why something was not measured.
    """
    cells, fruitless, missing = ours.cells, ours.fruitless, ours.missing
    differing, few, agreeing = [], [], 0
    for cell in cells:
        off = gap(published, cell, ours.others.get(cell.place))
        at = f" at {cell.place.where}" if cell.place.where else ""
        difference = f"{change(off, ours.how)}{at}"
        if cell.low is None:
            few.append(f"{difference}, n = {cell.n}" if off else "")
        elif off:
            differing.append(difference)
        elif _a_guess(published, cell):
            few.append("")
        else:
            agreeing += 1
    outcome: Outcome
    remark = "" if published.remark else remark
    if differing or fruitless:
        outcome, parts = "differs", [f"differs by {'; '.join(differing)}"] if differing else []
        if agreeing:
            parts.append(f"agrees at the other {agreeing}")
        if fruitless:
            where = f" at {', '.join(fruitless)}" if any(fruitless) else ""
            parts.append(f"no attack succeeded{where}")
        if remark:
            parts[-1] += f": {remark}"
    elif few:
        off_by = [one for one in few if one]
        outcome, parts = "few", ["too few repetitions to say"]
        if off_by:
            parts[0] += f" (off by {'; '.join(off_by)})"
        if off_by and remark:
            parts[0] += f": {remark}"
    elif agreeing:
        outcome, parts = "agrees", ["agrees"]
    else:
        outcome, parts = "not measured", [f"not measured: {problem or 'not run yet'}"]
    if missing and cells:
        parts.append(
            f"not measured at {', '.join(missing)}" + (f": {problem}" if problem else " yet")
        )
    places = (*(cell.place.where for cell in cells), *fruitless, *missing)
    return Judgement(published, ours.measure, ours.series, places, cells, outcome, "; ".join(parts))


def gap(published: Published, cell: Cell, other: float | None = None) -> float:
    """The signed distance of the mean from the published range; 0 if the cell agrees.

    Args:
        published: The statement.
        cell: The mean.
        other: The mean of the series that this one is published to be like.
    """
    low, high = published.bounds(cell.chance, other)
    if (cell.mean if cell.high is None else cell.high) < low:
        return cell.mean - low
    if (cell.mean if cell.low is None else cell.low) > high:
        return cell.mean - high
    return 0.0


def _a_guess(published: Published, cell: Cell) -> bool:
    """Whether the interval of a cell that agrees also contains chance, which does not agree."""
    if cell.chance is None or cell.low is None or cell.high is None or published.like is not None:
        return False
    low, high = published.bounds(cell.chance)
    return cell.low <= cell.chance <= cell.high and not low <= cell.chance <= high


def speaks_of(published: Published, place: Place, x: str) -> bool:
    """Whether a statement is about a place on the axis."""
    if x not in published.at:
        return True
    wanted = published.at[x]
    wanted = wanted if isinstance(wanted, list) else [wanted]
    return any(
        (f"{one:g}" if isinstance(one, int | float) else str(one)) in place.names for one in wanted
    )


def shown(published: Published, how: Measure) -> str:
    """The published number as text, such as `≥ 98 %`."""
    show, guess = how.show, "a random guess"
    if published.like is not None:
        text = f"as {published.like}"
    elif published.between is not None:
        text = " to ".join(map(show, published.between))
    elif published.at_least is not None:
        text = f"≥ {guess if published.at_least == 'chance' else show(published.at_least)}"
    elif published.at_most is not None:
        text = f"≤ {guess if published.at_most == 'chance' else show(published.at_most)}"
    else:
        text = show(published.value)
    return f"{text} ± {show(published.tolerance)}" if published.tolerance else text
