"""What may have been said behind a gradient, and in how many frames: cases to be tried."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.speech.pace import Pace
from fedsim.adversary import Job
from fedsim.gradients import frames_needed
from fedsim.records import BLANK_PIECE, WORD_START, Spec

__all__ = ["Case", "Cases", "encoded", "other", "too_short"]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What is known, or assumed: labels (L,) int64 and number of frames of each utterance."""

    targets: Sequence[Tensor]
    lengths: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cases:
    """What is tried, one at least, and in words what is not, because CTC cannot say it."""

    tried: Sequence[Case]
    left_out: Sequence[str]

    def pace(
        self,
        job: Job,
        first: float,
        others: float,
        remedy: str,
        *,
        side_by_side: int = 1,
        until_matched: bool = False,
    ) -> Pace:
        """For the first case; `first`, and `others` of each other case, are the fewest iterations.

        An iteration's time grows with the frames. remedy: settings to lower. side_by_side: starts
        that make an iteration together, each of which counts in the job's budget. until_matched:
        whether the case that is right ends the search.
        """
        frames = [sum(case.lengths) for case in self.tried]
        fewest = first + others * sum(frames[1:]) / frames[0]
        if job.budget is not None:
            fewest = min(fewest, math.ceil((job.budget - job.iterations) / side_by_side))
        if not until_matched or len(frames) == 1:
            return Pace(job, fewest, remedy)
        return Pace(
            job, fewest, remedy, "the fewest where the last that is listed is the right one"
        )


def too_short(targets: Sequence[Tensor], counts: Sequence[int], spec: Spec) -> str:
    """Which transcript has too few frames, where labels are those of CTC; else nothing."""
    pieces = spec.pieces or ()
    for target, count in zip(targets, counts, strict=True):
        if pieces[:1] == (BLANK_PIECE,) and (needed := frames_needed(target)) > count:
            return f"{spec.spell(target.tolist())!r} takes {needed} frames of {count}"
    return ""


def encoded(text: str, spec: Spec) -> Tensor:
    """Labels (L,) int64 of a transcript in the task's characters; `ValueError` for others."""
    pieces = spec.pieces or ()
    labels = {piece: label for label, piece in enumerate(pieces) if label}
    wanted = [WORD_START if character == " " else character for character in text]
    if strange := sorted({one for one in wanted if one not in labels}):
        raise ValueError(
            f"the transcript {text!r} has {', '.join(map(repr, strange))}, which the recogniser "
            "does not write; expected a-z, the apostrophe and spaces"
        )
    return torch.tensor([labels[one] for one in wanted], dtype=torch.int64)


def other(target: Tensor, classes: int, rng: torch.Generator) -> Tensor:
    """A random transcript of the same length, without two equal labels in a row (CTC needs a frame
    more for those)."""
    steps = torch.randint(1, classes - 1, (len(target),), generator=rng)
    return 1 + steps.cumsum(0) % (classes - 1)
