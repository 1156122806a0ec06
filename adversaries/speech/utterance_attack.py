"""An attack on the frames of utterances: what it has to know, tries, and claims."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from adversaries.speech.candidates import Candidate, Candidates, encoded, other, too_short
from fedsim.adversary import Adversary, Job
from fedsim.errors import DataError
from fedsim.gradients import WhitenedDistance, cosine_distance, squared_distance
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import SpeechSpec
from fedsim.victim import VictimModel

__all__ = ["UtteranceAttack", "distance_from"]

Distance = Callable[[Mapping[str, Tensor]], Tensor]

MOST_FRAMES = 100_000
MOST = 64
"""Combinations of transcripts and lengths that are tried at most."""


def distance_from(theirs: Mapping[str, Tensor], kind: str, floor: float = 0.01) -> Distance:
    """A function of gradients (R, *shape) that returns their distances (R,) from the observed one.

    Args:
        theirs: The observed gradient by parameter name, (1, *shape).
        kind: "cosine", "l2" or "whitened".
        floor: That of `WhitenedDistance`.
    """
    if kind == "whitened":
        return WhitenedDistance({name: value[0] for name, value in theirs.items()}, floor)
    measure = cosine_distance if kind == "cosine" else squared_distance
    return lambda ours: measure(ours, theirs)


class UtteranceAttack(Adversary):
    """An attack on the frames of utterances that has to know what was said, and in how many.

    The threat model grants transcripts and lengths, as HFGM assumes; or, of a single utterance,
    those listed in `transcripts` and `frames` are tried, each combination by itself, and the one
    whose gradient comes closest is claimed (appendix B.1), its transcript with it.
    """

    suits = (SpeechSpec,)
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE

    layers: Literal["last", "all"] = "last"
    """Whose gradient is matched: "last", the head, or "all"."""

    transcripts: list[str] = Field(default=[])
    """Tried instead of the one that LABELS grants."""

    frames: list[Annotated[int, Field(ge=1, le=MOST_FRAMES)]] = Field(default=[])
    """Numbers of frames, tried instead of the one that LENGTHS grants."""

    assumes: Literal["given", "random"] = "given"
    """ "random": another transcript of the same length, for every utterance: the control of
    appendix B.1."""

    off: int = Field(default=0, ge=-MOST_FRAMES, le=MOST_FRAMES)
    """Frames that are assumed beyond those there are (fewer where negative): the control of
    appendix B.1."""

    stretch: float = Field(default=1.0, gt=0, le=100)
    """How many times as many frames as there are, rounded, are assumed before `off`: the
    control of appendix B.1."""

    def requires(self) -> Knowledge:
        """Labels and lengths too, unless they are tried; the whole gradient where it is matched."""
        required = super().requires()
        if not self.transcripts:
            required |= Knowledge.LABELS
        if not self.frames:
            required |= Knowledge.LENGTHS
        return required | Knowledge.GRADIENT if self.layers == "all" else required

    def fills(self) -> frozenset[str]:
        """What was said, too, where transcripts are tried."""
        return super().fills() | ({"text"} if self.transcripts else set())

    def cautions(self, model: VictimModel) -> list[str]:
        """Losses other than CTC, transcripts that cannot be written, dropout that is on."""
        found = []
        if self.layers == "last" and not hasattr(model.module, "blank"):
            found.append(f"the model is not trained with CTC, whose head alone {self.name} matches")
        if isinstance(model.spec, SpeechSpec):
            try:
                for text in self.transcripts:
                    encoded(text, model.spec)
            except ValueError as error:
                found.append(str(error))
        if model.drops:
            found.append(
                "the model drops units at random: its gradient is that of masks nobody knows, and "
                f"{self.name} hardly comes closer than silence. first-frames does without them"
            )
        return found

    def observed(self, seen: Observation) -> dict[str, Tensor]:
        """The gradient to match by parameter name, of the head or all that was sent.

        Raises `ValueError` where the head is missing, and for zero, NaN or Inf.
        """
        whole = self.layers == "all"
        found = seen.know(Knowledge.GRADIENT if whole else Knowledge.HEAD_GRADIENT)
        if not whole and f"{seen.head}.weight" not in found:
            raise ValueError(
                f"no gradient for the head '{seen.head}.weight'; the update holds "
                f"{', '.join(found) or 'none'}"
            )
        if not all(bool(value.isfinite().all()) for value in found.values()):
            raise ValueError("the gradient holds NaN or Inf")
        if not any(bool(value.any()) for value in found.values()):
            raise ValueError("the gradient is zero throughout: there is nothing to match")
        return dict(found)

    def candidates(self, seen: Observation, job: Job) -> Candidates:
        """What the utterances may be: one case where transcripts and lengths are granted.

        Raises `ValueError` for a task without utterances, and for what cannot be tried;
        `DataError` where CTC can say no case, for each has too few frames for its transcript.
        """
        size = int(seen.know(Knowledge.BATCH_SIZE))
        spec = seen.spec.require(SpeechSpec)
        if size > 1 and (self.transcripts or self.frames):
            raise ValueError(
                f"the update holds {size} utterances; transcripts and numbers of frames are tried "
                "for a single one. Grant LABELS and LENGTHS"
            )
        transcripts = [[encoded(text, spec)] for text in self.transcripts]
        if not transcripts:
            transcripts = [[row[row >= 0] for row in seen.know(Knowledge.LABELS)]]
        if self.assumes == "random":
            transcripts = [
                [other(one, spec.classes, job.rng) for one in batch] for batch in transcripts
            ]
        numbers = [[count] for count in self.frames] or [list(seen.know(Knowledge.LENGTHS))]
        if len(transcripts) * len(numbers) > MOST:
            raise ValueError(
                f"{len(transcripts)} transcripts with {len(numbers)} numbers of frames are "
                f"{len(transcripts) * len(numbers)} attacks; expected {MOST} at most"
            )
        tried, left_out = list[Candidate](), list[str]()
        for targets, lengths in product(transcripts, numbers):
            counts = [round(self.stretch * int(length)) + self.off for length in lengths]
            if len(targets) != size or len(counts) != size or min(counts) < 1:
                raise ValueError(
                    f"{len(targets)} transcripts and frames {counts} for an update of {size} "
                    "utterances; expected one of each, and a frame at least"
                )
            if why := too_short(targets, counts, spec):
                left_out.append(why)
            else:
                tried.append(Candidate(targets, counts))
        if not tried:
            raise DataError(
                f"under CTC these have an infinite loss: {'; '.join(left_out[:3])}. Expected a "
                "frame for each character, and one between two that are equal"
            )
        return Candidates(tried, left_out)

    def claim(
        self,
        frames: Sequence[Tensor],
        candidate: Candidate,
        seen: Observation,
        *,
        left_out: Sequence[str],
        objective: float,
        outcomes: Sequence[str],
        trace: Sequence[tuple[int, float]],
        **diagnostics: object,
    ) -> Reconstruction:
        """Utterances (T, features), and the transcript where several were tried.

        Transcripts, lengths and what was not tried are among the diagnostics.
        """
        spec = seen.spec.require(SpeechSpec)
        spelled = diagnostics["said"] = [spec.spell(one.tolist()) for one in candidate.targets]
        if left_out:
            diagnostics["left out"] = list(left_out)
        return Reconstruction(
            text=spelled if self.transcripts else None,
            inputs=[one.detach().float().cpu() for one in frames],
            objective=objective,
            outcomes=tuple(outcomes),
            trace=tuple(trace),
            diagnostics={**diagnostics, "lengths": list(candidate.lengths)},
        )
