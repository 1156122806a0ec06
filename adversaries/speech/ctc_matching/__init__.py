"""ctc-matching: frames of utterances by gradient matching through the CTC loss."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.speech.candidates import Candidate, TimeEstimate
from adversaries.speech.ctc_matching.dummy_frames import DummyFrames
from adversaries.speech.utterance_attack import UtteranceAttack, distance_from
from fedsim import Job, Knowledge, Observation, Reconstruction, SpeechSpec
from fedsim.gradients import Adam, Match, Restarts, Rules, minimise
from fedsim.seeds import isolated

MATCHED = 1e-9
"""Distance below which a start has matched; in float32 it is zero up to rounding."""

SEVERAL_STEPS = {
    "local steps": "matched as one step on all their utterances: weights moved in between"
}

QUICKEST = 0.1
"""Least share of its iterations after which a start matches; a wrong candidate takes all."""


FALL = 0.1
"""Share by which `FRUITLESS` restarts have to lower the lowest distance; else they end."""

FRUITLESS = 3
"""Restarts from means over which the lowest distance has to fall."""


class CTCMatching(UtteranceAttack):
    """Recovers the frames of utterances by matching the direction of the gradient with Adam.

    The attack needs the same knowledge as HFGM, but uses derivatives instead of a direct search,
    since fedsim's CTC loss can be differentiated twice. The gradient of the head alone is G' H in
    closed form, so one backward pass through network and CTC gives the derivative for every frame,
    without second derivatives of the network.

    The gradient of a head has few large singular values. The cosine distance hardly depends on the
    others, and stays on a plateau for hundreds of iterations. `distance` = "whitened", the default,
    weights all singular directions alike (`WhitenedDistance`), and recovers utterances to the last
    digit in a fraction of the iterations. The head alone reveals an utterance if layers are wide
    (docs); narrow models need `layers` = "all".

    Beyond about 20 frames most starts end in different local minima around the truth, and their
    mean is closer to it than any of them. If none has matched, the search restarts: one start from
    the mean of all end points, each other one from the mean of a random half, with a learning rate
    equal to their standard deviation.

    Each of several candidate transcripts or lengths has its own starts. The search ends at the
    first candidate that matches, since only the correct one does. If none does, the candidates are
    restarted in the order of their distance.

    The objective adds `smoothness` times the mean squared difference of neighbouring frames. Starts
    are uniform in [-1, 1], and the point with the lowest objective is claimed.

    Several local steps are matched as one step on all their utterances. This is a good
    approximation if the learning rate is small, and the diagnostics mention it.

    The dropout masks of the client are unknown. `masks` = 0 matches the gradient without dropout,
    as HFGM does. `masks` > 0 matches the mean gradient over that many new masks in each step; the
    dropout must be a part of the model, because the server's copy has no hooks of the client.
    """

    name = "ctc-matching"
    keywords = (
        "gradient inversion",
        "gradient matching",
        "speech recognition",
        "audio reconstruction",
    )
    recovers = frozenset({"inputs", "objective", "outcomes"})
    cites = (
        "this project; with the cosine, the objective of Geiping et al., Inverting Gradients, "
        "NeurIPS 2020, Eq. 4"
    )

    distance: Literal["whitened", "cosine"] = "whitened"
    """Distance between gradients: "whitened" weights all singular directions alike."""

    floor: float = Field(default=0.01, gt=0, le=1)
    """Share of the largest singular value below which directions lose weight in the whitened
    distance; noisy updates need a larger one."""

    iterations: int = Field(default=150, ge=1)
    """Steps of Adam for each start, and again after each restart from means."""

    lr: float = Field(default=0.6, gt=0, allow_inf_nan=False)
    """Initial learning rate, lowered along a cosine; after a restart from means the standard
    deviation of the end points, if that is smaller."""

    restarts: int = Field(default=7, ge=0)
    """Number of further starts, optimised together until one matches."""

    meetings: int = Field(default=12, ge=0)
    """The largest number of restarts from means if no start has matched; a single start has
    none."""

    smoothness: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of the mean squared difference of neighbouring frames."""

    masks: int = Field(default=0, ge=0, le=64)
    """Number of dropout masks in each step whose mean gradient is matched; 0: no dropout."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient.

        Raises:
            ValueError: The inputs are no frames, the gradient cannot be matched, or `masks` is set
                for a model without dropout.
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
        found, features = list[_Search](), seen.spec.require(SpeechSpec).features
        for at, candidate in enumerate(candidates.tried):
            frames = DummyFrames(
                model,
                [target.to(job.device) for target in candidate.targets],
                [(length, features) for length in candidate.lengths],
                list(theirs),
                whole=self.layers == "all",
                distance=distance_from(theirs, self.distance, self.floor),
                smoothness=self.smoothness,
                draws=max(1, self.masks),
            )
            seed = int(torch.randint(2**62, (), generator=job.rng))
            with job.portion(len(candidates.tried) - at), isolated(seed, "masks", wide=False):
                size = features * sum(candidate.lengths)
                uniform = [torch.rand(size, generator=job.rng) for _ in range(1 + self.restarts)]
                starts = [2 * one.to(job.device) - 1 for one in uniform]
                match = self._adam(frames, job, None if at else estimate, starts, self.lr)
            found.append(_Search(candidate, frames, seed, match))
            if found[-1].matched:
                break
        else:  # no candidate has matched: restart them, the closest first
            for at, one in enumerate(sorted(found, key=lambda one: one.match.value)):
                with (
                    job.portion(len(found) - at),
                    isolated(one.seed, "masks", "meetings", wide=False),
                ):
                    one.match = self._from_means(one, job)
                if one.matched:
                    break
        best = min(found, key=lambda one: one.match.value)
        return self.claim(
            [one[0] for one in best.frames.split(best.match.point[None])],
            best.candidate,
            seen,
            objective=best.match.value,
            outcomes=tuple(best.match.outcomes),
            trace=tuple(job.trace),
            diagnostics={
                "distances": [one.match.value for one in found],
                "untried": len(candidates.tried) - len(found),
                "evaluations": best.match.evaluations,
                **({} if seen.exact or seen.steps == 1 else SEVERAL_STEPS),
                **candidates.notes,
            },
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

    def _from_means(self, one: "_Search", job: Job) -> Match:
        """Search again from the means of the points where R starts ended.

        The starts end at points that are each off in a direction of their own, so that their mean
        is nearer to the solution. Ends when a start has matched, when the budget is used up, when
        fewer than two starts took all their steps, or when restarts no longer lower the distance.

        Returns:
            The point with the lowest distance of all starts, the outcomes of the last ones, and
            the evaluations of all.
        """
        match, lowest = one.match, [one.match.value]
        for _ in range(self.meetings):
            both = zip(match.ends, match.outcomes, strict=True)
            ends = [end for end, outcome in both if outcome == "steps"]
            over = len(ends) < 2 or not {*match.outcomes} <= {"steps", "diverged"}
            before = lowest[-1 - FRUITLESS] if len(lowest) > FRUITLESS else math.inf
            if over or lowest[-1] > (1 - FALL) * before:
                break
            lr = min(self.lr, float(torch.stack(ends).std(dim=0).mean()))
            sofar, match = match, self._adam(one.frames, job, None, means(ends, job.rng), lr)
            match.evaluations += sofar.evaluations
            if sofar.value < match.value:
                match.point, match.value = sofar.point, sofar.value
            lowest.append(match.value)
        return match

    def _schedule(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.iterations)))


@dataclass(slots=True, eq=False)
class _Search:
    """The search for one candidate: its objective, seed of the dropout masks, and best result."""

    candidate: Candidate
    frames: DummyFrames
    seed: int
    match: Match

    @property
    def matched(self) -> bool:
        """Whether a start has matched, which only the correct transcript and length allow."""
        return "matched" in self.match.outcomes


def means(ends: list[Tensor], rng: torch.Generator) -> list[Tensor]:
    """The mean of R points of shape (n,), and R - 1 means of random halves of them."""
    points = torch.stack(ends)
    count = (len(ends) + 1) // 2
    halves = [torch.randperm(len(ends), generator=rng)[:count] for _ in ends[1:]]
    return [points.mean(dim=0), *(points[half.to(points.device)].mean(dim=0) for half in halves)]
