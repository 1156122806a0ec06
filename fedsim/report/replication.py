"""What is compared on a page: settings repeated over seeds, and paired differences between them.

A series is one setting of a run: a point of its sweep without the seed, or the whole run. The seeds
of a series are repetitions of it. Two series are compared on the attacks that they have in common,
by seed, round and victim, so that a difference does not depend on who was attacked.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fedsim.metric import Measure
from fedsim.report.intervals import CHANGE, Estimate, as_found, change, estimate
from fedsim.runs.reading import Measures, budget, point_parts

if TYPE_CHECKING:
    import pandas as pd

PAIR = ["seed", "round", "victim"]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The results of one setting, over all its seeds.

    Attributes:
        name: Its name on the page.
        rows: Its findings.
        utility: Its utility.
    """

    name: str
    rows: "pd.DataFrame"
    utility: "pd.DataFrame"


def utility_measure(metric: str) -> Measure:
    """How a metric of utility.csv is read."""
    if metric.endswith("accuracy"):
        return Measure("Accuracy", kind="share")
    if metric.endswith("mcc"):
        return Measure(metric, signed=True, most=1.0)
    return Measure(metric, lower=metric.endswith(("loss", "wer")) or budget(metric) is not None)


def attacks_of(rows: "pd.DataFrame", label: str, metric: str) -> "pd.DataFrame":
    """The averaged rows of one adversary's metric: of probes alone, if it attacked any."""
    return averaged(rows[(rows["label"] == label) & (rows["metric"] == metric)])


def averaged(part: "pd.DataFrame") -> "pd.DataFrame":
    """The averaged rows among those of one adversary's metric: of probes alone, if any."""
    part = part[part["counted"].notna()]
    probed = part["probe"] != ""
    return part[probed] if probed.any() else part


def leaked(part: "pd.DataFrame", how: Measure, column: str = "counted") -> Estimate:
    """The estimate of one adversary's metric over all its attacks, or of what a guess scores.

    Args:
        part: Rows of one adversary's metric.
        how: How the metric is read.
        column: "counted" or "baseline".
    """
    values = part[column].tolist()
    return estimate(values, part["seed"].tolist(), as_found(how, values))


def worst_probe(part: "pd.DataFrame", how: Measure) -> str:
    """The probe that leaked most, as the mean over seeds and rounds; "" without probes."""
    if part.empty or (part["probe"] == "").any():
        return ""
    means = part.groupby("probe", sort=True)["counted"].mean()
    return str(means.idxmin() if how.lower else means.idxmax())


def over_rounds(
    part: "pd.DataFrame", how: Measure, column: str = "counted"
) -> dict[float, Estimate]:
    """The estimate of each round, with an interval over seeds or, with fewer than three, probes.

    Args:
        part: Rows of one adversary's metric, or of one metric of utility.
        how: How the metric is read.
        column: The column with the values.
    """
    probed = "probe" in part and (part["probe"] != "").all()
    columns = (part[name].tolist() for name in ("round", "seed", column))
    values: dict[float, tuple[list[str], list[float]]] = {}
    for at, seed, value in zip(*columns, strict=True):
        if not math.isnan(at):
            seeds, own = values.setdefault(at, ([], []))
            seeds.append(seed)
            own.append(value)
    found = {
        at: estimate(own, seeds, as_found(how, own) if column == "counted" else how)
        for at, (seeds, own) in sorted(values.items())
    }
    return {
        at: one if one.over_seeds or probed else replace(one, low=None, high=None)
        for at, one in found.items()
    }


def last_utility(utility: "pd.DataFrame") -> dict[str, Estimate]:
    """Each metric of one series after its last round, over the seeds that got so far."""
    found = {}
    for metric, part in utility.groupby("metric", sort=False):
        known = part[part["value"].notna()]
        last, how = known[known["round"] == known["round"].max()], utility_measure(str(metric))
        if len(last):
            found[str(metric)] = estimate(last["value"].tolist(), last["seed"].tolist(), how)
    return found


def paired(ours: "pd.DataFrame", base: "pd.DataFrame", how: Measure) -> Estimate | None:
    """The mean difference of one metric on the attacks that two series have in common.

    Differences are averaged over a seed's attacks, then over seeds.

    Args:
        ours: Rows of the metric.
        base: The baseline's.
        how: How the metric is read.

    Returns:
        The difference, ours less the baseline's, with Student's t interval over seeds; without an
        interval for fewer than three seeds; None if the series have no attack in common. If shares
        changed from all to nothing in every pair, or the other way, or in none, that interval
        would have no width: it is then as wide as Wilson's of the share of pairs that did so.
    """
    left, right = (
        part.loc[part["counted"].notna(), [*PAIR, "counted"]].drop_duplicates(PAIR, keep="last")
        for part in (ours, base)
    )
    both = left.merge(right, on=PAIR, suffixes=("", "_base"))
    found = _difference(both, "counted")
    changes = {*(both["counted"] - both["counted_base"])}
    if found is None or found.low is None or len(changes) > 1 or not changes <= {-1.0, 0.0, 1.0}:
        return found
    alike = estimate([1.0] * len(both), both["seed"].tolist(), replace(how, kind="yes/no"))
    if how.kind not in ("share", "yes/no") or alike.low is None:
        return found
    (moved,), others = changes, 1 - alike.low
    return replace(found, low=max(-1.0, moved - others), high=min(1.0, moved + others))


def paired_utility(ours: "pd.DataFrame", base: "pd.DataFrame", metric: str) -> Estimate | None:
    """The same for a metric of utility, in the last round of each seed that both series have."""
    left, right = (
        part[(part["metric"] == metric) & part["value"].notna()].drop_duplicates(["seed", "round"])
        for part in (ours, base)
    )
    both = left.merge(right, on=["seed", "round"], suffixes=("", "_base")).sort_values("round")
    return _difference(both.drop_duplicates("seed", keep="last"), "value")


def _difference(both: "pd.DataFrame", column: str) -> Estimate | None:
    both = both.assign(difference=both[column] - both[f"{column}_base"])
    both = both[both["difference"].notna()]
    if both.empty:
        return None
    found = estimate(both["difference"].tolist(), both["seed"].tolist(), CHANGE)
    return found if found.over_seeds else replace(found, low=None, high=None)


def undefended(points: Iterable[str]) -> dict[str, str]:
    """The baseline of each point of a sweep that has one, by the names of the points.

    A baseline is a point at which `defenses` is empty and every swept setting of a defense is zero,
    such as `defenses.0.sigma=0.0`. It is the baseline of the points that have the same other
    values. What else its defenses do, by settings that are not swept, they do at all points.
    """
    bases: dict[tuple[tuple[str, str], ...], str] = {}
    others = {}
    for point in dict.fromkeys(points):
        defenses: list[tuple[str, str]] = []
        rest: list[tuple[str, str]] = []
        for key, value in point_parts(point):
            defended = key == "defenses" or key.startswith("defenses.")
            (defenses if defended else rest).append((key, value))
        if defenses and all(_off(key, value) for key, value in defenses):
            bases.setdefault(tuple(rest), point)
        elif defenses:
            others[point] = tuple(rest)
    return {point: bases[rest] for point, rest in others.items() if rest in bases}


def _off(key: str, value: str) -> bool:
    if key == "defenses":
        return value == "none"
    try:
        return float(value) == 0
    except ValueError:
        return False


def in_order(points: Iterable[str]) -> list[str]:
    """Put the baselines first; the other points keep their order."""
    every = list(dict.fromkeys(points))
    bases = {*undefended(every).values()}
    return sorted(every, key=lambda point: point not in bases)


def against(every: Sequence[Series]) -> list[tuple[Series, Series]]:
    """The series of a sweep that have a baseline (`undefended`), each with its baseline."""
    by_name = {one.name: one for one in every}
    return [(by_name[name], by_name[base]) for name, base in undefended(by_name).items()]


def differences_of(
    ours: Series, base: Series, main: Mapping[str, str], measures: Measures
) -> dict[str, str]:
    """Differences as text: of the utility metrics, then of each adversary's main metric.

    Args:
        ours: A series.
        base: The series that it is compared with.
        main: The main metric of each adversary, by label.
        measures: How metrics are read.

    Returns:
        Text by utility metric or adversary label; without those that cannot be compared.
    """
    found: dict[str, tuple[Estimate | None, Measure]] = {}
    for metric in dict.fromkeys(ours.utility["metric"]):
        if budget(metric) is None:
            found[metric] = (
                paired_utility(ours.utility, base.utility, metric),
                utility_measure(metric),
            )
    for label, metric in main.items():
        left, right = (attacks_of(series.rows, label, metric) for series in (ours, base))
        found[label] = paired(left, right, measures[metric]), measures[metric]
    return {name: change_of(one, how) for name, (one, how) in found.items() if one is not None}


def change_of(one: Estimate, how: Measure) -> str:
    """Format a difference and its interval, such as `-38.0 points [-52.1, -23.9]`."""
    if one.low is None or one.high is None:
        return change(one.mean, how)
    ends = [change(end, how).removesuffix(" points") for end in (one.low, one.high)]
    return f"{change(one.mean, how)} [{ends[0]}, {ends[1]}]"
