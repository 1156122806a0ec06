"""ctc-matching: frames of utterances by gradient matching through the CTC loss."""

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field

from adversaries.speech.candidates import Candidate, Candidates, TimeEstimate
from adversaries.speech.ctc_matching.dummy_frames import DummyFrames
from adversaries.speech.ctc_matching.frame_search import FrameSearch, from_means, from_starts
from adversaries.speech.padded_utterances import ignores_padding
from adversaries.speech.utterance_attack import UtteranceAttack, distance_from
from fedsim import Job, Knowledge, Observation, Reconstruction, SpeechSpec, VictimModel
from fedsim.seeds import isolated

SEVERAL_STEPS = {
    "local steps": "matched as one step on all their utterances: weights moved in between"
}

QUICKEST = 0.1
"""Least share of its iterations after which a start matches; a wrong candidate takes all."""


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
    group = 8
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

    shared_passes: bool = False
    """Whether victims of a round, of one utterance each, share the passes of their starts; one
    worker then attacks them. Results change by rounding, which a long search amplifies."""

    def together(self) -> int:
        """`group` if victims share passes with these settings, else 1."""
        return self.group if self._can_share else 1

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient.

        Raises:
            ValueError: The inputs are no frames, the gradient cannot be matched, or `masks` is set
                for a model without dropout.
        """
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many gradients: those of single utterances with one candidate in shared passes."""

        def attack(some: list[int]) -> list[Reconstruction]:
            model = seen[some[0]].know(Knowledge.MODEL).copy().to(jobs[some[0]].device)
            model.module.train(self.masks > 0)
            if self.masks and not model.drops:
                raise ValueError(
                    f"masks = {self.masks}, and the model drops nothing: all masks give one "
                    "gradient. The server's copy knows dropout only as a part of the model "
                    "(task.model.dropout), not as a client's defense; set masks = 0"
                )
            if len(some) == 1:
                return [self._alone(seen[some[0]], jobs[some[0]], model)]
            return self._in_shared_passes(
                [seen[at] for at in some], [jobs[at] for at in some], model
            )

        starts = 1 + self.restarts
        return self.attack_in_groups(seen, attack, shared=self._can_share, starts=starts)

    @property
    def _can_share(self) -> bool:
        """Whether single utterances share passes with these settings."""
        one_candidate = max(len(self.transcripts), len(self.frames)) <= 1
        return self.shared_passes and self.layers == "last" and not self.masks and one_candidate

    def _alone(self, seen: Observation, job: Job, model: VictimModel) -> Reconstruction:
        """Search for each candidate in turn, until one matches."""
        candidates = self.candidates(seen, job)
        estimate, found = self._estimate(candidates, job), list[FrameSearch]()
        for at, candidate in enumerate(candidates.tried):
            one = self._search_for(candidate, seen, job, model)
            with job.portion(len(candidates.tried) - at), isolated(one.seed, "masks", wide=False):
                self._from_starts([one], [] if at else [estimate])
            found.append(one)
            if one.matched:
                break
        else:  # no candidate has matched: restart them, the closest first
            for at, one in enumerate(sorted(found, key=lambda one: one.match.value)):
                with (
                    job.portion(len(found) - at),
                    isolated(one.seed, "masks", "meetings", wide=False),
                ):
                    self._from_means([one])
                if one.matched:
                    break
        return self._claim(found, candidates, seen)

    def _in_shared_passes(
        self, seen: Sequence[Observation], jobs: Sequence[Job], model: VictimModel
    ) -> list[Reconstruction]:
        """Search for the only candidate of each; of one length if logits depend on padding."""
        each = [self.candidates(one, job) for one, job in zip(seen, jobs, strict=True)]
        searches = [
            self._search_for(candidates.tried[0], one, job, model)
            for candidates, one, job in zip(each, seen, jobs, strict=True)
        ]
        by_length: dict[int, list[int]] = {}
        for at, one in enumerate(searches):
            by_length.setdefault(one.size, []).append(at)
        fixed = torch.Generator().manual_seed(0)
        noise = [torch.randn(one.frames.shapes[0], generator=fixed) for one in searches]
        utterances = [one.to(jobs[0].device) for one in noise]
        targets = [one.frames.targets[0] for one in searches]
        alike = len(by_length) == 1 or ignores_padding(model, utterances, targets)
        for some in [[*range(len(searches))]] if alike else by_length.values():
            estimates = [self._estimate(each[at], jobs[at]) for at in some]
            self._from_starts([searches[at] for at in some], estimates)
            self._from_means([searches[at] for at in some])
        return [
            self._claim([search], candidates, one)
            for search, candidates, one in zip(searches, each, seen, strict=True)
        ]

    def _search_for(
        self, candidate: Candidate, seen: Observation, job: Job, model: VictimModel
    ) -> FrameSearch:
        """A search that has not begun, with a seed of its own for the dropout masks."""
        theirs = {name: value[None].to(job.device) for name, value in self.observed(seen).items()}
        features = seen.spec.require(SpeechSpec).features
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
        return FrameSearch(candidate, frames, job, seed)

    def _estimate(self, candidates: Candidates, job: Job) -> TimeEstimate:
        return candidates.estimate(
            job,
            QUICKEST * self.iterations,
            self.iterations,
            "iterations, or the number of candidates",
            side_by_side=1 + self.restarts,
        )

    def _from_starts(self, some: list[FrameSearch], estimates: list[TimeEstimate]) -> None:
        from_starts(some, 1 + self.restarts, self.iterations, self.lr, estimates)

    def _from_means(self, some: list[FrameSearch]) -> None:
        from_means(some, self.meetings, self.iterations, self.lr)

    def _claim(
        self, found: list[FrameSearch], candidates: Candidates, seen: Observation
    ) -> Reconstruction:
        best = min(found, key=lambda one: one.match.value)
        return self.claim(
            [one[0] for one in best.frames.split(best.match.point[None])],
            best.candidate,
            seen,
            objective=best.match.value,
            outcomes=tuple(best.match.outcomes),
            trace=tuple(best.job.trace),
            diagnostics={
                "distances": [one.match.value for one in found],
                "untried": len(candidates.tried) - len(found),
                "evaluations": best.match.evaluations,
                **({} if seen.exact or seen.steps == 1 else SEVERAL_STEPS),
                **candidates.notes,
            },
        )
