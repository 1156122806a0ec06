"""Whether scores beat a guess on the same victims: p-values, Holm's correction, upper bounds.

`scipy.special` is imported when it is needed; `scipy.stats` would take a second.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from fedsim.metric import Measure
from fedsim.report.intervals import FEWEST, clusters_of

LEVEL = 0.05
"""The probability of calling an adversary leaky that does no better than a guess."""

Key = TypeVar("Key", bound=Hashable)


def better(
    values: Sequence[float],
    guesses: Sequence[float],
    seeds: Sequence[Hashable],
    how: Measure,
    *,
    units: Sequence[Hashable] = (),
    sizes: Sequence[float] = (),
    fewest: int = FEWEST,
) -> float | None:
    """The p-value, one-sided, of scores that are paired with those of a guess on the same victims.

    Where every unit has one score, or all scores are of one unit, each score counts: those that are
    all 0 or 1 have the exact binomial tail for the guesses' mean, others Student's t of the gains,
    infinite gains the sign test. If a guess is never right, one success is proof.

    Units with several scores count once each, since a guess that never changes may suit a client in
    every round: Student's t is over their means, or, from three seeds on, over those of the seeds.
    Of a few units it has little power. So the largest p-value of a unit alone counts too (units
    that are all better than the guess: the intersection-union test), and twice the smaller one of
    both is returned.

    Args:
        values: The scores.
        guesses: The score of a guess on the same victim.
        seeds: The seed of each.
        how: How the metric is read.
        units: The client or probe of each; every score has its own by default.
        sizes: How many examples each score is a share of; 1 by default. Scores that happen to be
            equal seem more certain than they are, so the standard error of a share is at least that
            of guesses, sqrt(p (1 - p) / size).
        fewest: The smallest number of scores that Student's t takes where each counts.

    Returns:
        The p-value; None if there are too few values.
    """
    n = len(values)
    units, sizes = units or range(n), sizes or [1.0] * n
    if how.lower and how.kind == "yes/no":
        values, guesses = [1 - v for v in values], [1 - g for g in guesses]
        how = replace(how, lower=False)
    gains = [(g - v if how.lower else v - g) for v, g in zip(values, guesses, strict=True)]
    if not n or any(map(math.isnan, gains)):
        return None
    if how.kind == "yes/no" and max(guesses) <= 0:
        return 0.0 if max(values) > 0 else 1.0
    clusters = clusters_of(seeds, units)
    found = [_over_clusters(clusters, values, gains, guesses, how, sizes, fewest)]
    if len({*clusters}) == n:
        return found[0]
    members: dict[Hashable, list[int]] = {}
    for place, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(place)
    if min(map(len, members.values())) >= FEWEST:
        every = [*zip(values, guesses, seeds, units, sizes, strict=True)]
        alone = []
        for own in members.values():
            v, g, s, u, z = zip(*(every[place] for place in own), strict=True)
            alone.append(better(v, g, s, how, units=u, sizes=z))
        found.append(max(1.0 if p is None else p for p in alone))
    known = [p for p in found if p is not None]
    return min(1.0, len(known) * min(known)) if known else None


def _over_clusters(
    clusters: Sequence[Hashable],
    values: Sequence[float],
    gains: Sequence[float],
    guesses: Sequence[float],
    how: Measure,
    sizes: Sequence[float],
    fewest: int,
) -> float | None:
    """The p-value over the means of clusters, or over all scores if each is a cluster."""
    counts, exact = Counter(clusters), 0.0
    each, n, k = len(counts) == len(values), len(values), len(counts)
    if any(map(math.isinf, gains)):
        gains = [math.copysign(1.0, gain) if gain else 0.0 for gain in gains]
        if each:
            return _binomial(sum(gain > 0 for gain in gains), n, 0.5)
    within = how.kind != "number" and min(guesses) >= 0 and max(guesses) <= 1
    if within and {0.0, 1.0}.issuperset(values):
        right = [1 - v for v in values] if how.lower else values
        chance = [1 - g for g in guesses] if how.lower else guesses
        exact = _binomial(round(sum(right)), n, sum(chance) / n)
        if each:
            return exact
    if each and n < fewest:
        return None
    spread = (
        guess * (1 - guess) / size / counts[cluster] ** 2
        for guess, size, cluster in zip(guesses, sizes, clusters, strict=True)
    )
    least = math.sqrt(sum(spread)) / k if within else 0.0
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
    if not math.isfinite(mean):  # the gains are too large to be added
        return 1.0
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
    squares = sum((one - mean) * (one - mean) for one in means)  # inf where ** would raise
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
