"""95 % intervals of a mean: Student's t, Wilson's for yes or no, both also for clusters."""

import math
from collections.abc import Hashable, Sequence

from fedsim.runs.measures import Measure

__all__ = ["FEWEST", "interval"]

FEWEST = 3
"""Values, or clusters of them, below which there is no interval."""
NORMAL = 1.96
"""The normal distribution's 97.5 % quantile."""


def interval(
    values: Sequence[float],
    how: Measure,
    *,
    clusters: Sequence[Hashable] = (),
    weights: Sequence[float] = (),
) -> tuple[float | None, float | None]:
    """95 % interval of the mean, within the measure's range; (None, None) below three values.

    Student's t, which covers what it says from three values on where a bootstrap falls short (75 %
    of the time with three normal values, 86 % with five). Wilson's for yes or no, which stays
    honest when all agree.

    clusters: of each value, what it shares with others (the network of its seed, the one call that
    timed it); there are to be three of them. For Student's t a cluster then counts as one value,
    however many it holds. Wilson's takes Student's quantile for that many clusters, and for the
    number of values the one that their spread between clusters speaks for (Kish's effective sample
    size), all of them where clusters differ no more than chance has it.

    weights: what each counts in the mean; all the same where left out.
    """
    from scipy.stats import t

    n = len(values)
    counted = weights or [1.0] * n
    if len(set(clusters or range(n))) < FEWEST or not all(map(math.isfinite, values)):
        return None, None
    mean = sum(w * x for w, x in zip(counted, values, strict=True)) / sum(counted)
    error, groups = _error(values, mean, clusters or range(n), counted)
    quantile = float(t.ppf(0.975, groups - 1))
    lowest, highest = how.range
    if how.kind == "yes/no" and min(values) >= 0 and max(values) <= 1:
        # Victims of one network that agree with each other say less than as many networks.
        alone = sum(w * w for w in counted) / sum(counted) ** 2
        agreement = max(1.0, error**2 / (mean * (1 - mean) * alone)) if 0 < mean < 1 else 1.0
        return _wilson(mean, 1 / alone / agreement, quantile if clusters else NORMAL)
    half = quantile * error
    # A plugin's measure may lie outside what such measures usually do.
    lowest, highest = min(lowest, *values), max(highest, *values)
    return max(lowest, mean - half), min(highest, mean + half)


def _error(
    values: Sequence[float],
    mean: float,
    clusters: Sequence[Hashable],
    weights: Sequence[float],
) -> tuple[float, int]:
    """Standard error of a mean over clusters of any size, and how many clusters there are.

    The sums of deviations cluster by cluster take the place of single deviations; with clusters of
    one it is the usual s / sqrt(n).
    """
    sums: dict[Hashable, float] = {}
    for value, cluster, weight in zip(values, clusters, weights, strict=True):
        sums[cluster] = sums.get(cluster, 0.0) + weight * (value - mean)
    k = len(sums)
    squares = sum(each**2 for each in sums.values())
    return math.sqrt(k / (k - 1) * squares) / sum(weights), k


def _wilson(mean: float, n: float, z: float) -> tuple[float, float]:
    centre = mean + z * z / (2 * n)
    spread = z * math.sqrt(mean * (1 - mean) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
