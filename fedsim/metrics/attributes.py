"""Metrics of attributes: the rank at which a claim names an attribute of an example (its speaker).

Claims are matched to originals by their inputs, like the metrics of frames; claims without inputs
are matched by position. If the true value is none of the candidates (`Spec.attributes`), the
correct answer is `UNKNOWN`. Ties count against the claim: equal scores for all candidates rank the
true value last, and so does a score of NaN or Inf. The rank is infinite for an original without a
claim, and for a claim that omits the true value.
"""

import math
from abc import abstractmethod
from typing import ClassVar

from fedsim.metric import Measure, Metric
from fedsim.metrics.frames import pair
from fedsim.records import UNKNOWN, Reconstruction, Spec, Truth

SPEAKER = "speaker"

SPEAKERS_FOR_FIVE = 20
"""The least number of candidates for which the first five ranks are informative."""


def ranks(claimed: Reconstruction, truth: Truth, spec: Spec, attribute: str) -> list[float]:
    """The rank of the true value for each original: 1 if it is named first, infinite if not named.

    Raises:
        ValueError: The truth does not have the attribute.
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


class _OfSpeakers(Metric):
    """The mean over utterances of a score of the true speaker's rank."""

    fields = ("attributes",)
    fewest: ClassVar[int] = 1
    """The least number of candidates for which the metric is informative."""

    @abstractmethod
    def worth(self, rank: float) -> float:
        """Score a rank: 1, 2, ... or infinity."""

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean of `worth` over all utterances."""
        found = ranks(claimed, truth, spec, SPEAKER)
        return sum(map(self.worth, found)) / len(found)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """The mean over all n ranks: a uniformly random order makes each equally likely."""
        values = spec.attributes[SPEAKER]
        right = [str(value) for value in truth.attributes[SPEAKER]]
        named = sum(value in values or UNKNOWN in values for value in right) / len(right)
        return named * sum(map(self.worth, range(1, len(values) + 1))) / len(values)

    def suits(self, spec: Spec) -> bool:
        """Tasks with at least `fewest` candidates."""
        return len(spec.attributes.get(SPEAKER, ())) >= self.fewest


class SpeakerTop1(_OfSpeakers):
    """Utterances whose speaker was the attacker's first guess."""

    name = "speaker_top1"
    keywords = ("speaker identification", "attribute inference", "top-1 accuracy")
    shown = Measure(
        "Speaker named",
        phrase="speakers of {hits} of {n} updates named",
        kind="yes/no",
        partly="speakers of {share} of the utterances in {n} updates named",
        rank=120,
    )

    def worth(self, rank: float) -> float:
        """1 for the first rank, else 0."""
        return float(rank <= 1)


class SpeakerTop5(_OfSpeakers):
    """Utterances whose speaker was among the attacker's first five guesses."""

    name = "speaker_top5"
    keywords = ("speaker identification", "attribute inference", "top-5 accuracy")
    shown = Measure(
        "Speaker in five",
        phrase="speakers of {hits} of {n} updates among the first five guesses",
        kind="yes/no",
        partly="speakers of {share} of the utterances in {n} updates among the first five guesses",
        detail=True,
        rank=130,
    )
    fewest = SPEAKERS_FOR_FIVE

    def worth(self, rank: float) -> float:
        """1 for the first five ranks, else 0."""
        return float(rank <= 5)


class SpeakerMRR(_OfSpeakers):
    """Mean of 1 / the rank at which the speaker was guessed; 1: always first."""

    name = "speaker_mrr"
    keywords = ("speaker identification", "attribute inference", "mean reciprocal rank")
    shown = Measure(
        "Speaker's rank",
        phrase="mean reciprocal rank of the speaker {value} over {n} updates",
        detail=True,
        most=1.0,
        rank=140,
    )

    def worth(self, rank: float) -> float:
        """The reciprocal of the rank."""
        return 1 / rank
