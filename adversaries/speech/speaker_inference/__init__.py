"""speaker-inference: who speaks, from the utterances that another attack reads off an update."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from adversaries.speech.speaker_inference.deep_speaker import Recipe, shortest
from adversaries.speech.speaker_inference.voiceprints import (
    Utterances,
    Voiceprints,
    loaded,
    voiceprints,
)
from fedsim.adversary import Adversary, Job, Source
from fedsim.knowledge import Knowledge
from fedsim.records import UNKNOWN, Observation, Reconstruction
from fedsim.spec import SpeechSpec
from fedsim.victim import VictimModel

__all__ = ["SpeakerInference"]


class SpeakerInference(Adversary):
    """The speaker of every utterance of a batch, among those of whom utterances are public.

    Another attack (`inputs_from`) claims the utterances as frames. An encoder turns each into a
    unit vector, such that vectors of one speaker point the same way, and a candidate's score is
    the mean cosine with those of up to `enrolment` of his public utterances. The encoder is Deep
    Speaker's (Li et al., 2017), trained on the auxiliary utterances, all of them other than the
    victim's, by triplets: max(0, cos(a, n) - cos(a, p) + `margin`). The defaults make it small;
    the papers' has widths [64, 128, 256, 512], 3 blocks and 512 values.

    Where clients hold utterances of others too (`UNKNOWN` in `spec.attributes`), "unknown" is a
    candidate, and its score a threshold. It is found on the auxiliary utterances alone: encoders
    that never heard a third of the speakers, nor one utterance of each other, score those; the
    threshold is where most of the one kind are above and most of the other below. With `encoder`
    the loaded one scores them all, and where it learned from them none is a stranger's.

    Training draws nothing from `job.rng`: it is a pure function of the auxiliary utterances and
    the settings, so that every victim meets the same encoder, trained once a process. An utterance
    that cannot be scored (other features, NaN, too short) ranks nobody.

    Claims what the other attack claims, and for each utterance a score a candidate.
    """

    name: ClassVar[str] = "speaker-inference"
    keywords = (
        "attribute inference",
        "speaker identification",
        "re-identification",
        "speech",
        "voice",
    )
    suits = (SpeechSpec,)
    needs: ClassVar[Knowledge] = Knowledge.AUXILIARY
    recovers: ClassVar[frozenset[str]] = frozenset({"inputs", "attributes"})
    cites: ClassVar[str] = (
        "Dang et al., A Method to Reveal Speaker Identity in Distributed ASR Training, and How to "
        "Counter It, ICASSP 2022, section 3.2"
    )

    inputs_from: Source = "first-frames"
    """Another adversary by name, which claims the frames."""

    encoder: str | None = None
    """Folder of an encoder that benchmarks/train_speakers.py wrote; left out: one is trained
    on the auxiliary utterances, as the settings below say."""

    enrolment: int = Field(default=5, ge=1)
    """Public utterances of a speaker to compare with, at most."""

    widths: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        default=(16, 32, 64, 128), min_length=1, max_length=8
    )
    """Channels of the encoder's stages, each of which halves the frames."""

    blocks: int = Field(default=1, ge=0, le=16)
    """Residual blocks a stage."""

    embedding: int = Field(default=128, ge=2, le=8192)
    """Values of an embedding."""

    margin: float = Field(default=0.1, ge=0, le=2)
    """Cosine by which triplets are to be apart."""

    steps: int = Field(default=300, ge=2)
    """Training steps."""

    lr: float = Field(default=0.003, gt=0)
    """Highest learning rate of the training."""

    longest: int = Field(default=100, ge=1)
    """Frames of an utterance in one training step, at most."""

    @field_validator("inputs_from")
    @classmethod
    def _no_threat_model_grants_inputs(cls, value: Source) -> Source:
        if value == "given":
            raise ValueError(
                "no threat model grants the inputs themselves; name an adversary that claims "
                "frames, such as first-frames"
            )
        return value

    def fills(self) -> frozenset[str]:
        """What it claims itself, and what the other attack claims."""
        return self.recovers | self.parts()["inputs_from"].fills()

    def cautions(self, model: VictimModel) -> list[str]:
        """What its part says; a part that claims no frames, an encoder that cannot be loaded."""
        found = super().cautions(model)
        if self.encoder is not None and isinstance(model.spec, SpeechSpec):
            try:
                loaded(Path(self.encoder), model.spec.features, torch.device("cpu"))
            except ValueError as error:
                found.append(str(error))
        if "inputs" not in self.parts()["inputs_from"].fills():
            found.append(
                f"inputs_from = '{self.source('inputs_from')}' claims no inputs; use an adversary "
                "that claims frames, such as first-frames"
            )
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Frames and rankings; raises `ValueError` where nobody can be heard, or none compared."""
        self.listen(seen, job)  # first, so that what is wrong with the encoder costs no search
        source = self.source("inputs_from")
        claimed = self.parts()["inputs_from"].reconstruct(seen, job)
        if claimed.inputs is None:
            raise ValueError(
                f"inputs_from = '{source}' claims no inputs; use an adversary that "
                "claims frames, such as first-frames"
            )
        rankings, unheard = self.rank(claimed.inputs, seen, job)
        if len(unheard) == len(claimed.inputs):
            told = "; ".join(sorted(set(unheard.values()))) or "there are none"
            raise ValueError(f"none of the utterances from '{source}' is heard: {told}")
        return dataclasses.replace(
            claimed,
            attributes={"speaker": rankings},
            diagnostics={
                source: dict(claimed.diagnostics),
                "named": [
                    None if i in unheard else max(one, key=lambda who: one[who])
                    for i, one in enumerate(rankings)
                ],
                "not heard": unheard,
                **self._threshold(seen),
            },
        )

    def rank(
        self, utterances: Sequence[Tensor], seen: Observation, job: Job
    ) -> tuple[list[dict[str, float]], dict[int, str]]:
        """For utterances (T, F) a score a candidate, and why some have none, by their number.

        Of `seen` the auxiliary utterances and the spec are read. Raises `ValueError` where there is
        nobody to compare with.
        """
        prints = self.listen(seen, job)
        features, shortest = prints.network.features, prints.network.shortest
        names = [*prints.enrolled, *([UNKNOWN] if prints.stranger is not None else [])]
        rankings, unheard = list[dict[str, float]](), dict[int, str]()
        for index, frames in enumerate(utterances):
            if why := _unfit(frames, features, shortest):
                unheard[index] = why
                rankings.append(dict.fromkeys(names, math.nan))
            else:
                rankings.append(prints.scores(frames.detach().cpu().float()))
        return rankings, unheard

    def _threshold(self, seen: Observation) -> dict[str, str]:
        """How the score of "unknown" was found, where it is a candidate."""
        if UNKNOWN not in seen.spec.attributes.get("speaker", ()):
            return {}
        how = "by encoders that never heard a third of the public speakers each"
        given = "by the loaded encoder, which may have heard all public speakers"
        return {"threshold": given if self.encoder else how}

    def listen(self, seen: Observation, job: Job) -> Voiceprints:
        """The candidates' voiceprints, by an encoder trained on their utterances, or loaded.

        Of `seen` the auxiliary utterances and the spec are read. Raises `ValueError` where nobody
        speaks, or too few utterances are there to learn from.
        """
        features = seen.spec.require(SpeechSpec).features
        if self.encoder is not None:
            encoder: Recipe | Path = Path(self.encoder)
            least = loaded(Path(self.encoder), features, job.device).shortest
        else:
            # A budget caps the training, and is not used up by it: only the first victim trains.
            steps = self.steps if job.budget is None else max(2, min(self.steps, job.budget))
            own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Recipe)}
            encoder = Recipe(**{**own, "steps": steps})
            least = shortest(self.widths)
        return voiceprints(
            _utterances(seen, least),
            encoder,
            most=self.enrolment,
            strangers=UNKNOWN in seen.spec.attributes.get("speaker", ()),
            device=job.device,
            progress=job.progress,
        )


def _utterances(seen: Observation, shortest: int) -> Utterances:
    """The auxiliary utterances that are long enough; raises `ValueError` where there are none."""
    public = seen.know(Knowledge.AUXILIARY)
    speakers = public.attributes.get("speaker")
    if not speakers:
        raise ValueError(
            "the auxiliary data do not tell who speaks: some utterances of the task's speakers "
            "have to be public (task.auxiliary_utterances)"
        )
    lengths = [public.inputs.shape[1]] * len(public) if public.lengths is None else public.lengths
    heard = [
        (str(name), frames[: int(length)].cpu().float())
        for name, frames, length in zip(speakers, public.inputs, lengths, strict=True)
        if int(length) >= shortest and name != UNKNOWN
    ]
    if not heard:
        raise ValueError(
            f"none of the {len(public)} public utterances has {shortest} frames, which the "
            "encoder's stages take: give it fewer stages (widths), or the task a smaller "
            "features.stride"
        )
    return heard


def _unfit(frames: Tensor, features: int, shortest: int) -> str:
    """Why an utterance cannot be heard, or nothing."""
    if frames.ndim != 2 or frames.shape[1] != features:
        return f"shape {tuple(frames.shape)}, expected (frames, {features})"
    if len(frames) < shortest:
        return f"{len(frames)} frames, expected {shortest} at least"
    return "" if bool(torch.isfinite(frames).all()) else "NaN or Inf among its frames"
