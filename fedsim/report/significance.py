"""Whether scores beat a guess on the same victims: p-values, Holm's correction, upper bounds.

`scipy.special` is imported when it is needed; `scipy.stats` would take a second.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from fedsim.metric import Measure
from fedsim.report.intervals import FEWEST

LEVEL = 0.05
"""The probability of calling an adversary leaky that does no better than a guess."""

Key = TypeVar("Key", bound=Hashable)


def better(
    values: Sequence[float],
    guesses: Sequence[float],
    seeds: Sequence[Hashable],
    how: Measure,
    *,
    sizes: Sequence[float] = (),
    fewest: int = FEWEST,
) -> float | None:
    """The p-value, one-sided, of scores that are paired with those of a guess on the same victims.

    Scores that are all 0 or 1 have the exact binomial tail for the guesses' mean. Other scores, and
    those of three seeds or more, have Student's t of the gains: over the seeds' means from three
    seeds on, else over victims. Infinite gains have the sign test. If a guess is never right, one
    success is proof.

    Args:
        values: The scores.
        guesses: The score of a guess on the same victim.
        seeds: The seed of each.
        how: How the metric is read.
        sizes: How many examples each score is a share of; 1 by default. Scores that happen to be
            equal seem more certain than they are, so the standard error of a share is at least that
            of guesses, sqrt(p (1 - p) / size).
        fewest: The smallest number of victims, or of seeds, that Student's t takes.

    Returns:
        The p-value; None if there are too few values.
    """
    n, exact = len(values), 0.0
    gains = [(g - v if how.lower else v - g) for v, g in zip(values, guesses, strict=True)]
    if not n or any(map(math.isnan, gains)):
        return None
    if any(map(math.isinf, gains)):
        return _binomial(sum(gain > 0 for gain in gains), n, 0.5)
    if how.kind == "yes/no" and max(guesses) <= 0:
        return 0.0 if max(values) > 0 else 1.0
    clusters = seeds if len(set(seeds)) >= FEWEST else range(n)
    within = how.kind != "number" and min(guesses) >= 0 and max(guesses) <= 1
    if within and {0.0, 1.0}.issuperset(values):
        right = [1 - v for v in values] if how.lower else values
        chance = [1 - g for g in guesses] if how.lower else guesses
        exact = _binomial(round(sum(right)), n, sum(chance) / n)
        if clusters is not seeds:
            return exact
    if len(set(clusters)) < fewest:
        return None
    spread = (g * (1 - g) / size for g, size in zip(guesses, sizes or [1.0] * n, strict=True))
    least = math.sqrt(sum(spread)) / n if within else 0.0
    return max(exact, _student(gains, clusters, least))


def _binomial(hits: int, n: int, chance: float) -> float:
    """The probability of at least `hits` successes in n trials."""
    from scipy.special import bdtrc

    return 1.0 if hits <= 0 else float(bdtrc(hits - 1, n, chance))


def _student(gains: Sequence[float], clusters: Sequence[Hashable], least: float) -> float:
    """The p-value of a positive mean; gains that are all equal are judged by their signs.

    Args:
        gains: The gains.
        clusters: What each shares with others, such as its seed.
        least: The smallest standard error.
    """
    from scipy.special import stdtr

    mean, error, k = _over(gains, clusters)
    error = max(error, least)
    if error <= 1e-12 * abs(mean):
        return float(0.5**k) if mean > 0 else 1.0
    return float(stdtr(k - 1, -mean / error))


def _over(values: Sequence[float], clusters: Sequence[Hashable]) -> tuple[float, float, int]:
    """The mean of the clusters' means, its standard error, and the number of clusters."""
    whose: dict[Hashable, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        whose.setdefault(cluster, []).append(value)
    means = [sum(own) / len(own) for own in whose.values()]
    k, mean = len(means), sum(means) / len(means)
    squares = sum((one - mean) ** 2 for one in means)
    return mean, math.sqrt(squares / (k - 1) / k), k


def holm(tested: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's adjusted p-values, which control the probability of any false finding."""
    found: dict[Key, float] = {}
    highest = 0.0
    for place, key in enumerate(sorted(tested, key=lambda one: tested[one])):
        highest = max(highest, min(1.0, (len(tested) - place) * tested[key]))
        found[key] = highest
    return found


def rate_below(n: int, hits: int = 0) -> float:
    """The one-sided 95 % upper bound of a rate that was seen `hits` times in n (Clopper-Pearson).

    Without a hit it is 1 - 0.05^(1/n), about 3 / n: the rule of three.
    """
    from scipy.special import betaincinv

    return 1.0 if hits >= n else float(betaincinv(hits + 1, n - hits, 1 - LEVEL))


def most(values: Sequence[float], clusters: Sequence[Hashable]) -> float | None:
    """The one-sided 95 % upper bound of a mean, by Student's t; None for too few clusters."""
    from scipy.special import stdtrit

    if len(set(clusters)) < FEWEST or not all(map(math.isfinite, values)):
        return None
    mean, error, k = _over(values, clusters)
    return float(mean + stdtrit(k - 1, 1 - LEVEL) * error)
