"""speaker-inference: the speaker of each utterance that another attack recovers."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, field_validator
from torch import Tensor

from adversaries.speech.speaker_inference.deep_speaker import Recipe, shortest
from adversaries.speech.speaker_inference.usable import public_utterances, unfit
from adversaries.speech.speaker_inference.voiceprints import (
    Voiceprints,
    loaded,
    voiceprints,
)
from fedsim import Knowledge, SpeechSpec, VictimModel
from fedsim.adversary import Adversary, Job, Source, group_size
from fedsim.records import UNKNOWN, Observation, Reconstruction


class SpeakerInference(Adversary):
    """Ranks the speakers with public utterances for each utterance of a batch.

    Another attack (`inputs_from`) claims the utterances as frames. An encoder maps each to a unit
    vector such that the vectors of one speaker are close. The score of a candidate is the mean
    cosine with the vectors of up to `enrolment` public utterances of that speaker. The encoder is
    Deep Speaker (Li et al., 2017), trained on the auxiliary utterances, none of which is the
    victim's, with the triplet loss max(0, cos(a, n) - cos(a, p) + `margin`). By default it is
    small; the paper's encoder has widths [64, 128, 256, 512], 3 blocks and 512 values.

    If clients also hold utterances of speakers without public ones (`UNKNOWN` in
    `spec.attributes`), "unknown" is a candidate whose score is a threshold. It is estimated from
    the auxiliary utterances: encoders are trained without a third of the speakers and without one
    utterance of each other speaker, and the threshold separates the scores of both kinds best. A
    loaded `encoder` scores them all; if it was trained on them, no speaker is new to it.

    Training does not draw from `job.rng`. It is a pure function of the auxiliary utterances and the
    settings, so all victims share one encoder, which is trained once per process. All candidates
    have the score NaN for an utterance that cannot be encoded (other features, NaN, too short).

    Claims are those of the other attack, and a score for each candidate and utterance.
    """

    name = "speaker-inference"
    keywords = (
        "attribute inference",
        "speaker identification",
        "re-identification",
        "speech",
        "voice",
    )
    suits = (SpeechSpec,)
    needs = Knowledge.AUXILIARY
    recovers = frozenset({"inputs", "attributes"})
    group = 8
    cites = (
        "Dang et al., A Method to Reveal Speaker Identity in Distributed ASR Training, and How to "
        "Counter It, ICASSP 2022, section 3.2"
    )

    inputs_from: Source = "first-frames"
    """The adversary that claims the frames, by name."""

    encoder: str | None = None
    """Folder of an encoder written by benchmarks/train_speakers.py; by default one is trained on
    the auxiliary utterances with the settings below."""

    enrolment: int = Field(default=5, ge=1)
    """The largest number of public utterances of a speaker that are compared."""

    widths: tuple[Annotated[int, Field(ge=1, le=4096)], ...] = Field(
        default=(16, 32, 64, 128), min_length=1, max_length=8
    )
    """Channels of the encoder's stages, each of which halves the number of frames."""

    blocks: int = Field(default=1, ge=0, le=16)
    """Number of residual blocks in each stage."""

    embedding: int = Field(default=128, ge=2, le=8192)
    """Number of values of an embedding."""

    margin: float = Field(default=0.1, ge=0, le=2)
    """Margin of the triplet loss, as a difference of cosines."""

    steps: int = Field(default=300, ge=2)
    """Number of training steps."""

    lr: float = Field(default=0.003, gt=0)
    """Highest learning rate of the training schedule."""

    longest: int = Field(default=100, ge=1)
    """The largest number of frames of an utterance in a training step."""

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
        """The fields in `recovers`, and those that the other attack fills."""
        return self.recovers | self.parts()["inputs_from"].fills()

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of an attack that claims no frames and of an encoder that cannot be loaded."""
        found = super().cautions(model)
        if self.encoder is not None and isinstance(model.spec, SpeechSpec):
            try:
                loaded(Path(self.encoder), model.spec.features, torch.device("cpu"))
            except ValueError as error:
                found.append(str(error))
        if "inputs" not in self.parts()["inputs_from"].fills():
            found.append(self._no_inputs())
        return found

    def _no_inputs(self) -> str:
        return (
            f"inputs_from = '{self.source('inputs_from')}' claims no inputs; use an adversary that "
            "claims frames, such as first-frames"
        )

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Recover the utterances and rank their speakers.

        Raises:
            ValueError: The other attack claims no inputs, no utterance can be encoded, or the
                auxiliary data have no speakers.
        """
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Recover the utterances of many as the other attack does, and rank their speakers."""
        for one, job in zip(seen, jobs, strict=True):
            before = len(job.trace)
            self.listen(one, job)  # first: a wrong encoder is reported before the long attack
            del job.trace[before:]  # only the victim that trains the encoder would have its losses
        claimed = self.parts()["inputs_from"].reconstruct_many(seen, jobs)
        return list(map(self._ranked, claimed, seen, jobs))

    def together(self) -> int:
        """As many as the other attack attacks at once."""
        return min(self.group, group_size(self.parts()["inputs_from"]))

    def _ranked(self, claimed: Reconstruction, seen: Observation, job: Job) -> Reconstruction:
        """A claim of the other attack, with the speakers of its utterances."""
        source = self.source("inputs_from")
        if claimed.inputs is None:
            raise ValueError(self._no_inputs())
        rankings, skipped = self.rank(claimed.inputs, seen, job)
        if len(skipped) == len(claimed.inputs):
            reasons = "; ".join(sorted(set(skipped.values()))) or "there are none"
            raise ValueError(f"none of the utterances from '{source}' can be encoded: {reasons}")
        return dataclasses.replace(
            claimed,
            attributes={"speaker": rankings},
            diagnostics={
                source: dict(claimed.diagnostics),
                "named": [
                    None if i in skipped else max(one, key=lambda who: one[who])
                    for i, one in enumerate(rankings)
                ],
                "not heard": skipped,
                **self._threshold(seen),
            },
        )

    def rank(
        self, utterances: Sequence[Tensor], seen: Observation, job: Job
    ) -> tuple[list[dict[str, float]], dict[int, str]]:
        """Score the candidates for utterances (T, F).

        Args:
            utterances: Frames of each utterance.
            seen: Provides the auxiliary utterances and the spec.
            job: The attack's job.

        Returns:
            The scores of all candidates for each utterance, and the reasons for those that cannot
            be encoded, by their index.

        Raises:
            ValueError: There are no speakers to compare with.
        """
        prints = self.listen(seen, job)
        features, shortest = prints.network.features, prints.network.shortest
        names = [*prints.enrolled, *([UNKNOWN] if prints.stranger is not None else [])]
        rankings, skipped = list[dict[str, float]](), dict[int, str]()
        for index, frames in enumerate(utterances):
            if why := unfit(frames, features, shortest):
                skipped[index] = why
                rankings.append(dict.fromkeys(names, math.nan))
            else:
                rankings.append(prints.scores(frames.detach().cpu().float()))
        return rankings, skipped

    def _threshold(self, seen: Observation) -> dict[str, str]:
        """How the score of "unknown" was estimated, if it is a candidate."""
        if UNKNOWN not in seen.spec.attributes.get("speaker", ()):
            return {}
        how = "by encoders trained without a third of the public speakers each"
        given = "by the loaded encoder, which may have been trained on all public speakers"
        return {"threshold": given if self.encoder else how}

    def listen(self, seen: Observation, job: Job) -> Voiceprints:
        """The candidates' voiceprints, from an encoder that is trained or loaded.

        Args:
            seen: Provides the auxiliary utterances and the spec.
            job: The attack's job.

        Raises:
            ValueError: The auxiliary data have no speakers, or too few utterances to train on.
        """
        features = seen.spec.require(SpeechSpec).features
        if self.encoder is not None:
            encoder: Recipe | Path = Path(self.encoder)
            least = loaded(Path(self.encoder), features, job.device).shortest
        else:
            # The budget limits the training but is not spent on it: only the first victim trains.
            steps = self.steps if job.budget is None else max(2, min(self.steps, job.budget))
            own = {field.name: getattr(self, field.name) for field in dataclasses.fields(Recipe)}
            encoder = Recipe(**{**own, "steps": steps})
            least = shortest(self.widths)
        return voiceprints(
            public_utterances(seen, least),
            encoder,
            most=self.enrolment,
            strangers=UNKNOWN in seen.spec.attributes.get("speaker", ()),
            device=job.device,
            progress=job.progress,
        )
