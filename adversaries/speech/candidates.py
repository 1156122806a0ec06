"""Candidate transcripts and frame counts for speech attacks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.speech.time_estimate import TimeEstimate
from fedsim.adversary import Job
from fedsim.gradients import frames_needed
from fedsim.spec import WORD_START, SpeechSpec


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One hypothesis about a batch of utterances, known or assumed.

    Attributes:
        targets: The labels of each utterance, int64 of shape (L,).
        lengths: The number of frames of each utterance.
    """

    targets: Sequence[Tensor]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class Candidates:
    """All hypotheses that an attack tries.

    Attributes:
        tried: At least one candidate.
        left_out: Why others are not tried, a sentence each: CTC cannot produce them.
    """

    tried: Sequence[Candidate]
    left_out: Sequence[str]

    def estimate(
        self, job: Job, first: float, others: float, remedy: str, *, side_by_side: int = 1
    ) -> TimeEstimate:
        """Estimate whether the search over all candidates finishes in time.

        The time of an iteration is assumed to be proportional to the number of frames.

        Args:
            job: The attack's job, with its budget and time limit.
            first: The least number of iterations on the first candidate.
            others: The least number of iterations on each other candidate.
            remedy: The settings that an error message advises to lower.
            side_by_side: Starts that are optimised together; each counts in the job's budget.

        Returns:
            The estimate, whose `step` is to be called in each iteration on the first candidate.
        """
        frames = [sum(candidate.lengths) for candidate in self.tried]
        least = first + others * sum(frames[1:]) / frames[0]
        if job.budget is not None:
            least = min(least, math.ceil((job.budget - job.iterations) / side_by_side))
        return TimeEstimate(job, least, remedy)


def too_short(targets: Sequence[Tensor], counts: Sequence[int], spec: SpeechSpec) -> str:
    """Say which transcript needs more frames than it has, for labels of CTC; "" if none does."""
    for target, count in zip(targets, counts, strict=True):
        if spec.has_blank and (needed := frames_needed(target)) > count:
            return f"{spec.spell(target.tolist())!r} takes {needed} frames of {count}"
    return ""


def encoded(text: str, spec: SpeechSpec) -> Tensor:
    """Encode a transcript as labels, int64 of shape (L,).

    Raises:
        ValueError: The transcript has characters that the recogniser does not write.
    """
    labels = {piece: label for label, piece in enumerate(spec.pieces) if label}
    wanted = [WORD_START if character == " " else character for character in text]
    if strange := sorted({*wanted} - labels.keys()):
        raise ValueError(
            f"the transcript {text!r} has {', '.join(map(repr, strange))}, which the recogniser "
            "does not write; expected a-z, the apostrophe and spaces"
        )
    return torch.tensor([labels[one] for one in wanted], dtype=torch.int64)


def other(target: Tensor, classes: int, rng: torch.Generator) -> Tensor:
    """A random transcript of the same length, without two equal labels in a row.

    Equal neighbours are left out because CTC needs one more frame for each.
    """
    steps = torch.randint(1, classes - 1, (len(target),), generator=rng)
    return 1 + steps.cumsum(0) % (classes - 1)
