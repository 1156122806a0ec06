"""95 % intervals of a mean: Student's t, or Wilson's for yes/no values, also over seeds."""

import functools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from fedsim.metric import Measure, number

FEWEST = 3
"""The smallest number of values, or of clusters, that has an interval."""
NORMAL = 1.96
"""The normal distribution's 97.5 % quantile."""
CHANGE = Measure("Change", signed=True)
"""How a difference of two values of any measure is read."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % interval.

    Attributes:
        mean: The mean of the seeds' means; NaN without values.
        low: Lower end of the interval; None if there are too few values.
        high: Upper end of the interval.
        n: Number of values.
        seeds: Number of seeds that the values come from.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    seeds: int

    @property
    def over_seeds(self) -> bool:
        """Whether the interval is one over seeds; otherwise it treats values as independent."""
        return self.seeds >= FEWEST

    def show(self, how: Measure) -> str:
        """Format the mean and its interval, such as `98.1 % [97, 98.9]`."""
        return interval_text(self.mean, self.low, self.high, how)


def clusters_of(seeds: Sequence[Hashable], units: Sequence[Hashable]) -> Sequence[Hashable]:
    """What counts as one observation each: the seeds from three on, else the units of each seed.

    Args:
        seeds: The seed of each value.
        units: Its client or probe. If all values are of one, each value counts.
    """
    if len({*seeds}) >= FEWEST:
        return seeds
    pairs = [*zip(seeds, units, strict=True)]
    return pairs if len({*pairs}) > 1 else range(len(pairs))


def as_found(how: Measure, values: Sequence[float]) -> Measure:
    """How a measure is read for an interval of these values: shares that are all 0 or 1 as yes/no.

    Student's t has no width if all values are equal; Wilson's interval has one.
    """
    if how.kind == "share" and {0.0, 1.0}.issuperset(values):
        return replace(how, kind="yes/no")
    return how


def estimate(
    values: Sequence[float],
    seeds: Sequence[Hashable],
    how: Measure,
    units: Sequence[Hashable] = (),
) -> Estimate:
    """The mean over repeated runs: first over the values of a seed, then over the seeds.

    From three seeds on, the interval is Student's t over the seeds' means; for yes/no values it is
    Wilson's with Student's quantile and an effective sample size. With fewer seeds the interval
    does not cover how seeds differ: it is one over units in the same way, if they have several
    values each, and else treats values as independent.

    Args:
        values: The values.
        seeds: The seed of each value.
        how: How the measure is read.
        units: The client or probe of each value; every value has its own by default.
    """
    counts = Counter(seeds)
    sums: dict[Hashable, float] = dict.fromkeys(counts, 0.0)
    for value, seed in zip(values, seeds, strict=True):
        sums[seed] += value
    means = [total / counts[seed] for seed, total in sums.items()]
    mean = sum(means) / len(means) if means else math.nan
    weights = [1 / counts[seed] for seed in seeds] if len(counts) > 1 else []
    clusters: Sequence[Hashable] = seeds if len(counts) >= FEWEST else ()
    if units and not clusters:
        apart = clusters_of(seeds, units)
        clusters = apart if len({*apart}) < len(values) else ()
    low, high = interval(values, how, clusters=clusters, weights=weights)
    if low is not None and high is not None:  # rounding may leave the mean 1e-16 outside
        low, high = min(low, mean), max(high, mean)
    return Estimate(mean, low, high, len(values), len(counts))


def interval_text(mean: float, low: float | None, high: float | None, how: Measure) -> str:
    """Format a mean and its interval, such as `98.1 % [97, 98.9]`."""
    if low is None or high is None:
        return how.show(mean)
    ends = [how.show(end).removesuffix(" %").removesuffix(" points") for end in (low, high)]
    return f"{how.show(mean)} [{ends[0]}, {ends[1]}]"


def change(value: float, how: Measure) -> str:
    """Format a difference of two values; shares in percentage points."""
    if how.kind == "number":
        return number(value, "+")
    return f"{100 * value:+.1f} points"


def interval(
    values: Sequence[float],
    how: Measure,
    *,
    clusters: Sequence[Hashable] = (),
    weights: Sequence[float] = (),
) -> tuple[float | None, float | None]:
    """The 95 % interval of a mean, within the measure's range.

    Student's t keeps its coverage with few values, where a bootstrap does not (75 % with three
    normal values, 86 % with five). Wilson's interval for yes/no values has a width even if all
    values are equal.

    Args:
        values: The values.
        how: How the measure is read.
        clusters: For each value, what it shares with others, such as the network of its seed or
            the call that timed it. For Student's t each cluster counts as one value. Wilson's
            interval uses Student's quantile for the number of clusters and Kish's effective sample
            size, estimated from the spread between clusters.
        weights: The weight of each value; all equal by default.

    Returns:
        Both ends; (None, None) with fewer than three values or clusters, or if values are so large
        that their squares are infinite.
    """
    n = len(values)
    counted = weights or [1.0] * n
    if len(set(clusters or range(n))) < FEWEST or not all(map(math.isfinite, values)):
        return None, None
    mean = sum(w * x for w, x in zip(counted, values, strict=True)) / sum(counted)
    error, groups = _error(values, mean, clusters or range(n), counted)
    quantile = _quantile(groups - 1)
    lowest, highest = how.range
    if how.kind == "yes/no" and min(values) >= 0 and max(values) <= 1:
        # Victims of one network that agree carry less information than victims of several.
        alone, agreement = sum(w * w for w in counted) / sum(counted) ** 2, 1.0
        if clusters and 0 < mean < 1:
            agreement = max(1.0, error**2 / (mean * (1 - mean) * alone))
        return _wilson(mean, 1 / alone / agreement, quantile if clusters else NORMAL)
    half = quantile * error
    if not math.isfinite(half):
        return None, None
    # Values of a plugin's measure may lie outside its declared range.
    lowest, highest = min(lowest, *values), max(highest, *values)
    return max(lowest, mean - half), min(highest, mean + half)


@functools.cache
def _quantile(freedom: int) -> float:
    """Student's 97.5 % quantile, by the degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


def _error(
    values: Sequence[float], mean: float, clusters: Sequence[Hashable], weights: Sequence[float]
) -> tuple[float, int]:
    """The standard error of a mean over clusters of any size, and the number of clusters.

    Deviations are summed in each cluster first; for clusters of size one this is s / sqrt(n).
    """
    sums: dict[Hashable, float] = {}
    for value, cluster, weight in zip(values, clusters, weights, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + weight * (value - mean)
    k = len(sums)
    squares = sum(each * each for each in sums.values())  # inf where each**2 would raise
    return math.sqrt(k / (k - 1) * squares) / sum(weights), k


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    centre = mean + z * z / (2 * n)
    spread = z * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = (centre - spread) / scale if mean > 0 else 0.0  # where rounding leaves 5e-17
    high = (centre + spread) / scale if mean < 1 else 1.0
    return max(0.0, low), min(1.0, high)
