"""Metrics of attributes: at which rank a claim names what else an example has, such as a speaker.

Claims are matched to originals by their inputs, as the metrics of frames match them; a claim
without inputs stands for the original at its place. Who is none of the candidates
(`Spec.attributes`) is rightly named `UNKNOWN`. Ties count against the claim: whoever scores as high
stands before the right one, so that equal scores for all rank it last. So does a score of NaN or
Inf, and an original without a claim, or whose right value the claim leaves out, is not named.
"""

import math
from collections.abc import Callable
from functools import partial

from fedsim.metrics.frames import pair
from fedsim.metrics.registry import Metric
from fedsim.records import UNKNOWN, Reconstruction, Spec, Truth

__all__ = ["ATTRIBUTES", "SPEAKERS_FOR_FIVE", "ranks"]

SPEAKERS_FOR_FIVE = 20
"""Candidates from which on it says something to be among the first five."""

Worth = Callable[[float], float]
"""What a rank from 1 on, or infinity, counts."""


def ranks(claimed: Reconstruction, truth: Truth, spec: Spec, attribute: str) -> list[float]:
    """The rank of each original's value, 1 where it is named first, infinite where it is not.

    Raises `ValueError` where the truth does not have the attribute.
    """
    if attribute not in truth.attributes:
        known = ", ".join(sorted(truth.attributes)) or "none"
        raise ValueError(f"this task's truth has no '{attribute}' of its examples; it has {known}")
    known_values = spec.attributes.get(attribute, ())
    rankings = claimed.attributes.get(attribute, ())
    right = [str(value) for value in truth.attributes[attribute]]
    order = list(range(len(right))) if claimed.inputs is None else pair(claimed, truth)[0]
    found = []
    for value, place in zip(right, order, strict=True):
        scores = dict(rankings[place]) if place < len(rankings) else {}
        found.append(_rank(scores, value if value in known_values else UNKNOWN, len(known_values)))
    return found


def _rank(scores: dict[str, float], right: str, candidates: int) -> float:
    if right not in scores:
        return math.inf
    if not math.isfinite(scores[right]):
        return max(candidates, len(scores))
    finite = [score for score in scores.values() if math.isfinite(score)]
    return sum(score >= scores[right] for score in finite)


def _mean(
    claimed: Reconstruction, truth: Truth, spec: Spec, *, attribute: str, worth: Worth
) -> float:
    found = ranks(claimed, truth, spec, attribute)
    return sum(map(worth, found)) / len(found)


def _chance(truth: Truth, spec: Spec, *, attribute: str, worth: Worth) -> float:
    """Of a uniformly random order of the candidates: each rank of n is as likely."""
    values = spec.attributes[attribute]
    right = [str(value) for value in truth.attributes[attribute]]
    named = sum(value in values or UNKNOWN in values for value in right) / len(right)
    return named * sum(worth(rank) for rank in range(1, len(values) + 1)) / len(values)


def _first(rank: float, of: int) -> float:
    return float(rank <= of)


def _reciprocal(rank: float) -> float:
    return 1 / rank


def _among(spec: Spec, attribute: str, least: int) -> bool:
    return len(spec.attributes.get(attribute, ())) >= least


def _metric(name: str, summary: str, attribute: str, worth: Worth, least: int = 1) -> Metric:
    return Metric(
        name,
        summary,
        ("attributes",),
        True,
        partial(_mean, attribute=attribute, worth=worth),
        chance=partial(_chance, attribute=attribute, worth=worth),
        suits=partial(_among, attribute=attribute, least=least),
    )


ATTRIBUTES = (
    _metric(
        "speaker_top1",
        "share of the utterances whose speaker is named first; ties count against the claim",
        "speaker",
        partial(_first, of=1),
    ),
    _metric(
        "speaker_top5",
        "share of the utterances whose speaker is among the first five named, of 20 or more",
        "speaker",
        partial(_first, of=5),
        SPEAKERS_FOR_FIVE,
    ),
    _metric(
        "speaker_mrr",
        "mean of 1 / the rank at which the speaker of an utterance is named",
        "speaker",
        _reciprocal,
    ),
)
"""The metrics of attributes."""
