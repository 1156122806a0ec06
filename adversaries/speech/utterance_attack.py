"""Base class of attacks that search for frames whose gradient is the one observed."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from adversaries.speech.candidates import Candidate, Candidates, encoded, other, too_short
from fedsim import (
    Adversary,
    Job,
    Knowledge,
    Observation,
    Reconstruction,
    Requirement,
    SpeechSpec,
    VictimModel,
)
from fedsim.errors import DataError
from fedsim.gradients import WhitenedDistance, cosine_distance, in_groups, squared_distance

Distance = Callable[[Mapping[str, Tensor]], Tensor]
"""Maps gradients (R, *shape) by parameter name to their distances (R,) from the observed one."""

HELD = 2**27
"""The largest number of units times frames in a pass that victims share, about 512 MB."""

MOST_FRAMES = 100_000
"""The largest number of frames that a setting may ask for."""

MOST = 64
"""The largest number of combinations of transcripts and lengths that are tried."""


def distance_from(theirs: Mapping[str, Tensor], kind: str, floor: float = 0.01) -> Distance:
    """Make the distance from an observed gradient.

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
    """Base class of attacks on the frames of utterances whose transcripts and lengths are needed.

    The threat model grants both, as HFGM assumes. For a single utterance the candidates in the
    settings `transcripts` and `frames` can be tried instead: the attack runs once for each
    combination and claims the one with the lowest gradient distance (HFGM, appendix B.1).
    """

    suits = (SpeechSpec,)
    needs = Knowledge.HEAD_GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    requirements = (
        Requirement("examples", "every utterance adds frames to be found", most=4),
        Requirement("optimizer", "it matches a gradient, not steps of it", only=("sgd",)),
        Requirement("dropout", "the masks are not known", most=0),
    )

    layers: Literal["last", "all"] = "last"
    """Layers whose gradient is matched: the head ("last"), or "all"."""

    transcripts: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    """Candidate transcripts, which are tried instead of what LABELS grants."""

    frames: list[Annotated[int, Field(ge=1, le=MOST_FRAMES)]] = Field(default=[])
    """Candidate numbers of frames, which are tried instead of what LENGTHS grants."""

    assumes: Literal["given", "random"] = "given"
    """Transcripts that are assumed: those "given", or "random" ones of the same lengths, as a
    control (HFGM, appendix B.1)."""

    off: int = Field(default=0, ge=-MOST_FRAMES, le=MOST_FRAMES)
    """Number of frames added to each length, or removed if negative, as a control (HFGM, appendix
    B.1)."""

    stretch: float = Field(default=1.0, gt=0, le=100)
    """Factor of each length, rounded, before `off` is added, as a control (HFGM, appendix B.1)."""

    def requires(self) -> Knowledge:
        """Labels and lengths too unless candidates are given; for all layers the whole gradient."""
        required = super().requires()
        if not self.transcripts:
            required |= Knowledge.LABELS
        if not self.frames:
            required |= Knowledge.LENGTHS
        return required | Knowledge.GRADIENT if self.layers == "all" else required

    def fills(self) -> frozenset[str]:
        """The fields in `recovers`, and the text if candidate transcripts are given."""
        return super().fills() | ({"text"} if self.transcripts else set())

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of other losses than CTC, unwritable transcripts, dropout and batch statistics."""
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
        norms = [
            p for p in model.module.modules() if isinstance(p, nn.modules.batchnorm._BatchNorm)
        ]
        if any(norm.training for norm in norms):
            found.append(
                "the model normalises by statistics of the client's batch, and the gradient that "
                f"{self.name} matches is that with running ones. first-frames does without both"
            )
        return found

    def attack_in_groups(
        self,
        seen: Sequence[Observation],
        attack: Callable[[list[int]], list[Reconstruction]],
        *,
        shared: bool,
        starts: int = 1,
    ) -> list[Reconstruction]:
        """Attack single utterances of one model together, and batches of several alone.

        Args:
            seen: The observations.
            attack: Attacks the observations at these positions.
            shared: Whether victims share passes; if not, each is attacked alone.
            starts: Number of searches side by side for each victim.

        Returns:
            What was recovered from each.
        """
        models = [one.know(Knowledge.MODEL) for one in seen]
        single = [int(one.know(Knowledge.BATCH_SIZE)) == 1 for one in seen]
        keys = [-1 if shared and one else at for at, one in enumerate(single)]
        most = min(self.at_once(one, starts) for one in seen)
        return in_groups(models, keys, attack, most=lambda _: most)

    def at_once(self, seen: Observation, starts: int = 1) -> int:
        """Number of victims whose passes together hold `HELD` values at most.

        Args:
            seen: The observation of one of them, with one utterance.
            starts: Number of searches side by side for each victim.
        """
        longest = max(self.frames or seen.lengths or [1])
        frames = self.stretch * longest + max(0, self.off)
        weights = seen.know(Knowledge.MODEL).parameters().values()
        units = sum(weight.shape[0] for weight in weights if weight.ndim)
        return max(1, int(HELD / max(1, starts * frames * units)))

    def observed(self, seen: Observation) -> dict[str, Tensor]:
        """The gradient to match by parameter name: of the head, or of all layers.

        Raises:
            ValueError: The head is missing, or the gradient is zero or holds NaN or Inf.
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
        # A client may send 16 bits, in which no layer computes.
        return {k: v if v.dtype == torch.float64 else v.float() for k, v in found.items()}

    def candidates(self, seen: Observation, job: Job) -> Candidates:
        """The candidates for a batch; a single one if transcripts and lengths are granted.

        Raises:
            ValueError: The task has no utterances, or the settings give no valid candidates.
            DataError: Every candidate has too few frames for its transcript under CTC.
        """
        size = int(seen.know(Knowledge.BATCH_SIZE))
        spec = seen.spec.require(SpeechSpec)
        if size > 1 and (self.transcripts or self.frames):
            raise ValueError(
                f"the update holds {size} utterances; transcripts and numbers of frames are tried "
                "for a single one. Leave them out, and grant LABELS and LENGTHS"
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
        self, frames: Sequence[Tensor], candidate: Candidate, seen: Observation, **fields: Any
    ) -> Reconstruction:
        """Claim utterances (T, features), and the transcripts if candidates were given.

        Args:
            frames: The frames of each utterance.
            candidate: The transcripts and lengths that were assumed.
            seen: The observation.
            **fields: Further fields of `Reconstruction`, `diagnostics` among them.
        """
        spec = seen.spec.require(SpeechSpec)
        spelled = [spec.spell(one.tolist()) for one in candidate.targets]
        notes = {"said": spelled, "lengths": list(candidate.lengths)}
        return Reconstruction(
            text=spelled if self.transcripts else None,
            inputs=[one.detach().float().cpu() for one in frames],
            diagnostics={**fields.pop("diagnostics"), **notes},
            **fields,
        )
