"""Candidate transcripts and frame counts for speech attacks, and the time to try them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.adversary import Job
from fedsim.gradients import frames_needed
from fedsim.spec import WORD_START, SpeechSpec
from fedsim.victim import VictimModel

TIMED = 5
"""Number of iterations that the estimate is based on."""


class TimeEstimate:
    """Times the first iterations of an attack, and stops one that cannot finish in time.

    Args:
        job: The attack's job, with the seconds that remain.
        least: The least number of iterations that the attack needs.
        remedy: The settings that the error message advises to lower.
    """

    def __init__(self, job: Job, least: float, remedy: str) -> None:
        self.job, self.least, self.remedy = job, least, remedy
        self.begun, self.began = 0, 0.0

    def step(self) -> None:
        """Call at the beginning of each iteration.

        Raises:
            ValueError: At the measured speed, `least` iterations exceed the time limit.
        """
        now = time.monotonic()
        if not self.begun:
            self.began = now
        elif self.begun == TIMED:
            seconds = (now - self.began) / TIMED
            if seconds * (self.least - TIMED) > self.job.remaining:
                raise ValueError(
                    f"an iteration takes {seconds:.3g} s, and the least number of iterations for "
                    f"all candidates, {self.least:.0f}, {seconds * self.least:.3g} s: longer than "
                    f"the time limit allows, of which {self.job.remaining:.3g} s are left. Raise "
                    f"threat.timeout, or lower {self.remedy}"
                )
        self.begun += 1


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

    @property
    def notes(self) -> dict[str, list[str]]:
        """Diagnostics: why candidates were left out, if any were."""
        return {"left out": list(self.left_out)} if self.left_out else {}

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


def loss_weight(model: VictimModel, target: Tensor) -> int:
    """Weight of an utterance in its batch's mean loss: 1 under CTC, else its number of labels.

    Args:
        model: A recogniser. If it has a `blank` its loss is CTC, otherwise a mean over labels.
        target: The utterance's labels, (L,) int64.
    """
    return 1 if hasattr(model.module, "blank") else len(target)


def encoded(text: str, spec: SpeechSpec) -> Tensor:
    """Encode a transcript as labels, int64 of shape (L,).

    Raises:
        ValueError: The transcript has characters that the recogniser does not write, or its labels
            are no characters.
    """
    if not spec.has_blank:
        raise ValueError(
            "transcripts are encoded letter by letter, and this recogniser writes word pieces; "
            "leave out transcripts and grant LABELS"
        )
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
