"""Metrics of attributes: at which rank a claim names what else an example has, such as a speaker.

Claims are matched to originals by their inputs, as the metrics of frames match them; a claim
without inputs stands for the original at its place. Who is none of the candidates
(`Spec.attributes`) is rightly named `UNKNOWN`. Ties count against the claim: whoever scores as high
stands before the right one, so that equal scores for all rank it last. So does a score of NaN or
Inf, and an original without a claim, or whose right value the claim leaves out, is not named.
"""

import math
from abc import abstractmethod
from typing import ClassVar

from fedsim.metric import Measure, Metric
from fedsim.metrics.frames import pair
from fedsim.records import UNKNOWN, Reconstruction, Spec, Truth

__all__ = ["ATTRIBUTES", "SPEAKERS_FOR_FIVE", "ranks"]

SPEAKER = "speaker"

SPEAKERS_FOR_FIVE = 20
"""Candidates from which on it says something to be among the first five."""


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


class _OfSpeakers(Metric):
    """A mean over utterances of what the rank of the true speaker counts."""

    fields = ("attributes",)
    fewest: ClassVar[int] = 1
    """Candidates from which on the metric says something."""

    @abstractmethod
    def worth(self, rank: float) -> float:
        """What a rank from 1 on, or infinity, counts."""

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The mean over all utterances."""
        found = ranks(claimed, truth, spec, SPEAKER)
        return sum(map(self.worth, found)) / len(found)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """For a uniformly random order of the n candidates: each rank is equally likely."""
        values = spec.attributes[SPEAKER]
        right = [str(value) for value in truth.attributes[SPEAKER]]
        named = sum(value in values or UNKNOWN in values for value in right) / len(right)
        return named * sum(map(self.worth, range(1, len(values) + 1))) / len(values)

    def suits(self, spec: Spec) -> bool:
        """Tasks with enough candidates."""
        return len(spec.attributes.get(SPEAKER, ())) >= self.fewest


class SpeakerTop1(_OfSpeakers):
    """Share of the utterances whose speaker is named first; ties count against the claim."""

    name = "speaker_top1"
    keywords = ("speaker identification", "attribute inference", "top-1 accuracy")
    shown = Measure(
        "Speaker named",
        "Utterances whose speaker was the attacker's first guess.",
        "speakers of {hits} of {n} updates named",
        kind="yes/no",
        partly="speakers of {share} of the utterances in {n} updates named",
        rank=120,
    )

    def worth(self, rank: float) -> float:
        """1 for the first."""
        return float(rank <= 1)


class SpeakerTop5(_OfSpeakers):
    """Share of the utterances whose speaker is among the first five named, of 20 or more."""

    name = "speaker_top5"
    keywords = ("speaker identification", "attribute inference", "top-5 accuracy")
    shown = Measure(
        "Speaker in five",
        "Utterances whose speaker was among the attacker's first five guesses.",
        "speakers of {hits} of {n} updates among the first five guesses",
        kind="yes/no",
        partly="speakers of {share} of the utterances in {n} updates among the first five guesses",
        detail=True,
        rank=130,
    )
    fewest = SPEAKERS_FOR_FIVE

    def worth(self, rank: float) -> float:
        """1 for the first five."""
        return float(rank <= 5)


class SpeakerMRR(_OfSpeakers):
    """Mean of 1 / the rank at which the speaker of an utterance is named."""

    name = "speaker_mrr"
    keywords = ("speaker identification", "attribute inference", "mean reciprocal rank")
    shown = Measure(
        "Speaker's rank",
        "Mean of 1 / the rank at which the speaker was guessed; 1: always first.",
        "mean reciprocal rank of the speaker {value} over {n} updates",
        detail=True,
        most=1.0,
        rank=140,
    )

    def worth(self, rank: float) -> float:
        """The reciprocal rank."""
        return 1 / rank


ATTRIBUTES = (SpeakerTop1, SpeakerTop5, SpeakerMRR)
"""The metrics of attributes."""
