"""Means and intervals of the rows of a run folder, for each series and place on the axis."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.errors import ScenarioError
from fedsim.metric import Measure
from fedsim.metrics import installed
from fedsim.report.intervals import FEWEST, interval
from fedsim.runs.reading import (
    Measures,
    read_findings,
    read_measures,
    read_rows,
    read_utility,
    split_point,
)
from fedsim.scenario import Scenario
from fedsim.scenario.dotted import short
from fedsim.scenario.paper import Paper
from fedsim.scenario.rounds import chosen_rounds

if TYPE_CHECKING:
    import pandas as pd

CHANGE = "_change"
OF_ATTACKS = ("seconds", "iterations_to_success")
KNOWN = {
    "accuracy": Measure("Accuracy", "Share of test examples classified rightly.", "", "share"),
    "accuracy_change": Measure(
        "Change of accuracy",
        "Accuracy, less that at the first place of the axis.",
        "",
        "share",
        signed=True,
    ),
    "seconds": Measure("Seconds", "Wall-clock time of an attack.", "", lower=True, unit=" s"),
    "iterations_to_success": Measure(
        "Iterations to success",
        "Iterations of the attacks that recovered every example recognisably, to their end: failed "
        "starts count, and what comes after the examples are recognisable.",
        "",
        lower=True,
    ),
}


@dataclass(frozen=True, slots=True)
class Place:
    """A place on the axis: its value, a number if possible, and all ways to write it."""

    at: float | str
    names: frozenset[str]

    @property
    def where(self) -> str:
        """The value as text."""
        return f"{self.at:g}" if isinstance(self.at, float) else self.at


@dataclass(frozen=True, slots=True)
class Cell:
    """The mean of a measure for one series at one place.

    Attributes:
        measure: The name of the measure.
        series: The name of the series.
        place: The place on the axis.
        n: Number of values.
        mean: Their mean.
        low: Lower end of the mean's 95 % interval; None with fewer than three values.
        high: Upper end of the interval.
        chance: The mean score of a random guess on the same victims; None if there is none.
        broken: Number of attacks that failed or ran out of time, and count as a random guess.
        seeds: Number of seeds that the values come from.
    """

    measure: str
    series: str
    place: Place
    n: int
    mean: float
    low: float | None
    high: float | None
    chance: float | None = None
    broken: int = 0
    seeds: int = 1


def axis(x: str) -> str:
    """The title of an axis, such as `batch size` for training.batch_size."""
    return x.rpartition(".")[2].replace("_", " ")


def reading(folder: Path) -> Measures:
    """How the measures of a run folder are read, including those that do not score attacks."""
    return Measures(read_measures(folder)[0] | KNOWN)


def places(scenario: Scenario) -> dict[float | str, Place]:
    """The places on a scenario's axis, in order.

    Returns:
        Places by the value of the sweep or, if rounds are the axis, by the number of the bin. Bins
        without an attacked round are left out.
    """
    paper = _paper(scenario)
    if paper.x != "round":
        found = dict.fromkeys(_split(chosen, paper)[0] for chosen in _chosen(scenario).values())
        return {at: Place(at, frozenset({Place(at, frozenset()).where})) for at in found}
    chosen = chosen_rounds(scenario.threat.rounds, scenario.training.rounds)
    bins: dict[float | str, Place] = {}
    for number in range(math.ceil(scenario.training.rounds / paper.bin)):
        first = number * paper.bin + 1
        rounds = range(first, min(first + paper.bin, scenario.training.rounds + 1))
        if chosen.isdisjoint(rounds):
            continue
        bins[float(number)] = Place(sum(rounds) / len(rounds), frozenset(map(str, rounds)))
    return bins


def series(scenario: Scenario, name: str) -> dict[tuple[str, str], str]:
    """Names of a measure's series, by (the sweep's other values as text, adversary label or "")."""
    paper = _paper(scenario)
    extras = list(dict.fromkeys(_split(c, paper)[1] for c in _chosen(scenario).values()))
    if not of_attacks(name, scenario):
        return {(extra, ""): extra or name.removesuffix(CHANGE) for extra in extras}
    labels = [plan.title for plan in scenario.adversaries]
    return {
        (extra, label): f"{label}, {extra}" if extra else label
        for extra in extras
        for label in labels
    }


def of_attacks(name: str, scenario: Scenario) -> bool:
    """Whether a measure scores attacks, and not the model that is trained.

    A word error rate can be either: without adversaries it is the model's.
    """
    return bool(scenario.adversaries) and (name in installed() or name in OF_ATTACKS)


def _mean(values: list[float], weights: list[float]) -> float:
    """Weighted mean of the values that are not NaN; NaN if there are none."""
    known = [(v, w) for v, w in zip(values, weights, strict=True) if not math.isnan(v)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan


def _paper(scenario: Scenario) -> Paper:
    if scenario.paper is None:
        raise ScenarioError(f"{scenario.name} has no [paper] table")
    return scenario.paper


def _chosen(scenario: Scenario) -> dict[str, dict[str, Any]]:
    return scenario.combinations() if scenario.sweep else {"": {}}


def _split(chosen: dict[str, Any], paper: Paper) -> tuple[float | str, str]:
    """A point's value on the axis, and its other values as text."""
    value = chosen.get(paper.x, "")
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    apart = {paper.x, *paper.pool}
    others = ", ".join(short(other) for key, other in chosen.items() if key not in apart)
    return float(value) if numeric else short(value), others


class Rows:
    """The rows of one run folder, with added columns seed, extra (other values) and place.

    Rows of points that are not in the scenario's sweep are left out.

    Args:
        folder: The run folder; without files there are no rows.
        scenario: The scenario.
    """

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.paper, self.scenario = _paper(scenario), scenario
        self.places, self.measures = places(scenario), reading(folder)
        self._known = {
            point: _split(chosen, self.paper) for point, chosen in _chosen(scenario).items()
        }
        rows, _ = read_findings(folder)
        self.findings = self._placed(rows)
        utility, _ = read_utility(folder)
        ended, _ = read_rows(folder, "points.csv", {"point"})
        utility = utility[utility["point"].isin(set(ended["point"]) if len(ended) else set())]
        self.utility = self._placed(utility[utility["round"] > 0])

    def _placed(self, rows: "pd.DataFrame") -> "pd.DataFrame":
        if rows.empty:  # killed early
            return rows.assign(seed="", rest="", extra="", place="")
        split = {point: split_point(point) for point in rows["point"].unique()}
        rows = rows.assign(
            seed=[split[point][0] for point in rows["point"]],
            rest=[split[point][1] for point in rows["point"]],
        )
        rows = rows[rows["rest"].isin(set(self._known))].copy()
        rows["extra"] = [self._known[point][1] for point in rows["rest"]]
        if self.paper.x == "round":
            rows["place"] = (rows["round"] - 1) // self.paper.bin
        else:
            rows["place"] = [self._known[point][0] for point in rows["rest"]]
        return rows

    def cells(self) -> Iterator[Cell]:
        """Compute the cells, in the order of measures, series and places."""
        for name in self.paper.measure:
            yield from (
                self._attacks(name) if of_attacks(name, self.scenario) else self._utility(name)
            )

    def _attacks(self, name: str) -> Iterator[Cell]:
        rows = self.findings
        if name == "seconds":
            rows = rows[rows["status"] == "ok"].drop_duplicates(["point", "victim", "label"])
            rows = rows.assign(counted=rows["seconds"], baseline=math.nan)
        elif name == "iterations_to_success":
            rows = rows[(rows["metric"] == "recovered") & (rows["value"] == 1)]
            rows = rows.assign(counted=rows["iterations"], baseline=math.nan)
        else:
            rows = rows[rows["metric"] == name]
        rows = rows[rows["counted"].notna()]
        for (extra, label), called in series(self.scenario, name).items():
            own = rows[(rows["extra"] == extra) & (rows["label"] == label)]
            for place, part in self._by_place(own):
                yield self._cell(name, called, place, part)

    def _cell(self, name: str, called: str, place: Place, part: "pd.DataFrame") -> Cell:
        """The cell of these attacks' rows.

        Victims of one seed share a network, and attacks made in one call share its seconds, so
        each seed, or call, is one cluster of the interval. With fewer than three seeds the victims
        are treated as independent, since no interval over networks can be computed.
        """
        values, seeds = part["counted"].tolist(), part["seed"].nunique()
        weights = self._weights(part)
        if name == "seconds":
            clusters = [*zip(part["point"], part["round"], part["seconds"], strict=True)]
        else:
            clusters = part["seed"].tolist() if seeds >= FEWEST else []
        low, high = interval(values, self.measures[name], clusters=clusters, weights=weights)
        chance = _mean(part["baseline"].tolist(), weights)
        broken = int(part["status"].isin(["failed", "timeout"]).sum())
        guessed = None if math.isnan(chance) else chance
        mean = _mean(values, weights)
        return Cell(name, called, place, len(values), mean, low, high, guessed, broken, seeds)

    def _weights(self, part: "pd.DataFrame") -> list[float]:
        """The weight of each attack: 1, or the number of different labels of its victim.

        A random guess has a label precision proportional to that number, so its score is used.
        """
        if self.paper.weights != "labels":
            return [1.0] * len(part)
        key = ["point", "victim", "label"]
        found = self.findings[self.findings["metric"] == "label_precision"].set_index(key)
        known: list[float] = (
            found["baseline"].reindex([*part[key].itertuples(index=False)]).tolist()
        )
        if any(map(math.isnan, known)):
            raise ScenarioError(
                'paper.weights = "labels" needs attacks that name labels (label_precision)'
            )
        return known

    def _utility(self, name: str) -> Iterator[Cell]:
        base = name.removesuffix(CHANGE)
        rows = self.utility[self.utility["metric"] == base]
        if self.paper.x != "round":
            rows = rows[rows["round"] > self.scenario.training.rounds - self.paper.last]
        origin = next(iter(self.places.values()))
        for (extra, _), called in series(self.scenario, name).items():
            found = [
                (place, part.groupby("seed")["value"].mean())
                for place, part in self._by_place(rows[rows["extra"] == extra])
            ]
            for place, values in found:
                if base == name:
                    yield self._trained(name, called, place, values.tolist())
                elif found[0][0] == origin != place:
                    change = (values - found[0][1]).dropna().tolist()
                    yield self._trained(name, called, place, change)

    def _trained(self, name: str, called: str, place: Place, values: list[float]) -> Cell:
        """The cell of a model's utility, with one value for each seed."""
        mean = sum(values) / len(values) if values else math.nan
        low, high = interval(values, self.measures[name])
        return Cell(name, called, place, len(values), mean, low, high, seeds=len(values))

    def _by_place(self, rows: "pd.DataFrame") -> "Iterator[tuple[Place, pd.DataFrame]]":
        for key, place in self.places.items():
            part = rows[rows["place"] == key]
            if len(part):
                yield place, part
