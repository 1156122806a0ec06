"""ctc-matching: the frames of utterances by first-order gradient matching, through CTC."""

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.speech.candidates import Candidate
from adversaries.speech.ctc_matching.dummy_frames import DummyFrames
from adversaries.speech.ctc_matching.restarts import restart_from_means
from adversaries.speech.time_estimate import TimeEstimate
from adversaries.speech.utterance_attack import UtteranceAttack, distance_from
from fedsim.adversary import Job
from fedsim.gradients import Adam, Match, Restarts, Rules, minimise
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.seeds import isolated
from fedsim.spec import SpeechSpec

__all__ = ["CTCMatching"]

MATCHED = 1e-9
"""Distance below which a start ends: float32 does not tell it from zero."""

SEVERAL_STEPS = {
    "local steps": "matched as one step on all their utterances: weights moved in between"
}

QUICKEST = 0.1
"""Share of its iterations that a start which matches takes at least; a wrong case takes all."""


class CTCMatching(UtteranceAttack):
    """Frames whose gradient has the direction of the one observed, found by Adam.

    Needs what HFGM needs and takes derivatives instead of trying: fedsim's CTC can be
    differentiated twice, which is all that HFGM's authors miss. Matching the head alone does not
    even ask for second derivatives of the network: its gradient G' H is in closed form, so that
    one backward pass through network and CTC moves every frame.

    The gradient of a head has few large singular values, and the cosine distance hardly sees the
    others: it comes to a plateau for hundreds of iterations, where it may stay. `distance` =
    "whitened", the default, makes them all count (`WhitenedDistance`), and finds utterances to the
    last digit in a fraction of the iterations. Wide layers are what gives an utterance away from
    the head alone (docs); narrow models want `layers` = "all".

    Beyond 20 frames or so most starts end in a wrong valley, each in another, and all around the
    truth: their mean is nearer to it than any of them. So where none has matched they meet, and go
    on from there: one from the mean of all, each other one from the mean of a random half, with
    steps as long as they were apart.

    Of several transcripts or lengths each is sought from starts of its own, until one matches, as
    only the right one does; where none has, starts meet, those of the closest first.

    Added is `smoothness` times the mean square of the difference of neighbouring frames. Starts
    uniform in [-1, 1]; the point with the lowest value that was met is claimed.

    Several local steps are matched as one on all their utterances, which is close where a small
    learning rate hardly moves the weights; the diagnostics say so.

    A model with dropout has a gradient of masks nobody knows. `masks` = 0 matches one without
    dropout, as HFGM does; more than 0 the mean gradient of so many masks drawn anew each time, for
    which dropout has to be a part of the model: the server's copy has no client's hooks.
    """

    name: ClassVar[str] = "ctc-matching"
    keywords = (
        "gradient inversion",
        "gradient matching",
        "speech recognition",
        "audio reconstruction",
    )
    recovers: ClassVar[frozenset[str]] = frozenset({"inputs", "objective", "outcomes"})
    cites: ClassVar[str] = (
        "this project; with the cosine, the objective of Geiping et al., Inverting Gradients, "
        "NeurIPS 2020, Eq. 4"
    )

    distance: Literal["whitened", "cosine"] = "whitened"
    """Of gradients: every singular direction alike, or cosine."""

    floor: float = Field(default=0.01, gt=0, le=1)
    """Share of the largest singular value below which whitened directions fade; more where
    updates are noisy."""

    iterations: int = Field(default=150, ge=1)
    """Steps of Adam a start, and again after each meeting."""

    lr: float = Field(default=0.6, gt=0, allow_inf_nan=False)
    """Step length, lowered along a cosine; after a meeting the starts' distance, if that is
    less."""

    restarts: int = Field(default=7, ge=0)
    """Further starts, side by side until one matches."""

    meetings: int = Field(default=12, ge=0)
    """Times at most that starts, where none has matched, go on from their means; with a single
    start there are none."""

    smoothness: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """What the difference of neighbouring frames counts."""

    masks: int = Field(default=0, ge=0, le=64)
    """Dropout masks a step whose mean is matched; 0: none."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match; raises `ValueError` where the frames or the model are of another kind.

        So are `masks` of a model that has no dropout.
        """
        theirs = {name: value[None].to(job.device) for name, value in self.observed(seen).items()}
        model = seen.know(Knowledge.MODEL).copy().to(job.device)
        model.module.train(self.masks > 0)
        if self.masks and not model.drops:
            raise ValueError(
                f"masks = {self.masks}, and the model drops nothing: all masks give one gradient. "
                "The server's copy knows dropout only as a part of the model "
                "(task.model.dropout), not as a client's defense; set masks = 0"
            )
        candidates = self.candidates(seen, job)
        estimate = candidates.estimate(
            job,
            QUICKEST * self.iterations,
            self.iterations,
            "iterations, or the number of candidates",
            side_by_side=1 + self.restarts,
        )
        found = list[_Search]()
        for at, candidate in enumerate(candidates.tried):
            frames = DummyFrames(
                model,
                candidate,
                theirs,
                seen.spec.require(SpeechSpec).features,
                whole=self.layers == "all",
                distance=distance_from(theirs, self.distance, self.floor),
                smoothness=self.smoothness,
                masks=self.masks,
            )
            seed = int(torch.randint(2**62, (), generator=job.rng))
            with job.portion(len(candidates.tried) - at), isolated(seed, "masks"):
                uniform = [
                    torch.rand(frames.size, generator=job.rng) for _ in range(1 + self.restarts)
                ]
                starts = [2 * one.to(job.device) - 1 for one in uniform]
                match = self._adam(frames, job, None if at else estimate, starts, self.lr)
            found.append(_Search(candidate, frames, seed, match))
            if found[-1].matched:
                break
        else:  # those that came closest first
            for at, one in enumerate(sorted(found, key=lambda one: one.match.value)):
                with job.portion(len(found) - at), isolated(one.seed, "masks", "meetings"):
                    search = functools.partial(self._adam, one.frames, job, None)
                    one.match = restart_from_means(
                        search, one.match, self.lr, self.meetings, job.rng
                    )
                if one.matched:
                    break
        best = min(found, key=lambda one: one.match.value)
        return self.claim(
            [one[0] for one in best.frames.split(best.match.point[None])],
            best.candidate,
            seen,
            left_out=candidates.left_out,
            objective=best.match.value,
            outcomes=best.match.outcomes,
            trace=job.trace,
            distances=[one.match.value for one in found],
            untried=len(candidates.tried) - len(found),
            evaluations=best.match.evaluations,
            **({} if seen.exact or seen.steps == 1 else SEVERAL_STEPS),
        )

    def _adam(
        self,
        frames: DummyFrames,
        job: Job,
        estimate: TimeEstimate | None,
        starts: list[Tensor],
        lr: float,
    ) -> Match:
        def objective(points: Tensor, victims: Tensor) -> Tensor:
            if estimate is not None:
                estimate.step()
            return frames(points, victims)

        waiting = iter(starts)
        (match,) = minimise(
            objective,
            lambda _: next(waiting),
            [job],
            lambda points: Adam(points, lr=lr, schedule=self._schedule),
            [Rules(self.iterations, evaluations=1, matched=MATCHED, patience=self.iterations)],
            restarts=Restarts(len(starts) - 1, together=True),
        )
        return match

    def _schedule(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.iterations)))


@dataclass(slots=True, eq=False)
class _Search:
    """A case, the frames that are moved for it, and where they have come to."""

    candidate: Candidate
    frames: DummyFrames
    seed: int
    match: Match

    @property
    def matched(self) -> bool:
        """Whether a start came to the distance that no other frames or transcripts have."""
        return "matched" in self.match.outcomes
