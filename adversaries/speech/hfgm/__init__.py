"""HFGM: frames of utterances by direct search, from the gradient of a recogniser's head."""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from adversaries.speech.candidates import Candidate, TimeEstimate
from adversaries.speech.hfgm.direct_search import DirectSearch, side_by_side
from adversaries.speech.hfgm.frame_changes import Differentiable, FrameChanges, HeadOnly, Whole
from adversaries.speech.utterance_attack import UtteranceAttack, distance_from
from fedsim import Job, Knowledge, Observation, Reconstruction, SpeechSpec, VictimModel


class HFGM(UtteranceAttack):
    """Recovers the frames of utterances by a direct search over changes of single frames.

    Frames start uniform in [-1, 1]. Each iteration draws random unit vectors, each for a random
    frame. Those that lower the gradient distance when added with length `step` are kept, and all
    kept vectors are added together (Algorithm 1). The step is halved when `patience` iterations
    have lowered the distance by less than `fall`; when it reaches `smallest`, the search ends. No
    second derivatives are needed. The head's gradient under CTC follows from a forward pass of the
    model, of which DeepSpeech repeats only the part that a change affects. With `layers` = "all"
    any loss and model work.

    `selection` = "predicted" is not the paper's: the derivative of the distance by the frames, from
    one backward pass, predicts which vectors lower it. An iteration costs a sixth to a tenth, and
    lowers the distance as far. Victims of a round, of one utterance each, then share the passes of
    their searches, which changes results by rounding alone.

    In a batch, each iteration changes one utterance drawn at random; the gradients of the others
    are kept (Algorithm 3). After several local steps on one utterance, each change is evaluated by
    simulating those steps (Algorithm 4; the paper draws 8 vectors there). As in the paper, dropout
    is off in the simulation. The frames with the lowest distance are claimed.
    """

    name = "hfgm"
    keywords = (
        "gradient inversion",
        "gradient matching",
        "zeroth order",
        "speech recognition",
        "audio reconstruction",
    )
    recovers = frozenset({"inputs", "objective"})
    group = 8
    cites = (
        "Dang et al., A Method to Reveal Speaker Identity in Distributed ASR Training, and How to "
        "Counter It, ICASSP 2022, Algorithms 1, 3 and 4"
    )

    samples: int = Field(default=128, ge=2, le=4096)
    """Number of vectors that an iteration evaluates."""

    step: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Initial length of a vector, in the units of the features."""

    smallest: float = Field(default=0.125, gt=0)
    """Length of a vector at which the search ends."""

    patience: int = Field(default=2500, ge=1)
    """Iterations over which the distance has to fall."""

    fall: float = Field(default=0.05, gt=0, lt=1)
    """Share by which the distance has to fall; else the step is halved."""

    iterations: int = Field(default=50_000, ge=1)
    """The largest number of iterations for each candidate."""

    schedule: Literal["halving", "cosine"] = "halving"
    """Schedule of the step: "halving" (the paper), or a quarter of a "cosine" over all
    iterations."""

    distance: Literal["cosine", "l2", "whitened"] = "cosine"
    """Distance between gradients; the authors use "l2" for batches, ctc-matching "whitened"."""

    selection: Literal["evaluated", "predicted"] = "evaluated"
    """How vectors that lower the distance are found: each one is "evaluated" (the paper), or
    "predicted" by the derivative of the distance and a curvature measured on a few; for
    `layers` = "last" and a single local step."""

    fidelity: Literal["paper", "authors"] = "paper"
    """Vectors drawn in an iteration: `samples` in the paper, one less in the authors' code."""

    @model_validator(mode="after")
    def _predicts_the_head(self) -> "HFGM":
        if self.selection == "predicted" and self.layers == "all":
            raise ValueError(
                'selection = "predicted" differentiates the closed form of the head\'s gradient; '
                'expected layers = "last", or selection = "evaluated"'
            )
        return self

    def together(self) -> int:
        """As many as share their passes if vectors are predicted; evaluations fill passes alone."""
        return self.group if self.selection == "predicted" else 1

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Search the frames of the utterances.

        Raises:
            NotGranted: The number of local steps is withheld, or their learning rate if there
                are several.
            ValueError: The inputs are no frames, the gradient cannot be matched, or several local
                steps used different utterances or are to be predicted.
        """
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Search many at once: single utterances of one model in shared passes."""

        def attack(some: list[int]) -> list[Reconstruction]:
            model = seen[some[0]].know(Knowledge.MODEL).copy().to(jobs[some[0]].device)
            model.module.eval()
            attacks = [self._searching(seen[at], jobs[at], model) for at in some]
            return side_by_side(attacks, self.samples - (self.fidelity == "authors"))

        return self.attack_in_groups(seen, attack, shared=self.selection == "predicted")

    def _searching(
        self, seen: Observation, job: Job, model: VictimModel
    ) -> Generator[DirectSearch, None, Reconstruction]:
        """Attack one observation; yields the search of which the next iteration is wanted."""
        theirs = {name: value[None].to(job.device) for name, value in self.observed(seen).items()}
        several = Knowledge.LOCAL_STEPS in seen.granted or not seen.exact
        steps = int(seen.know(Knowledge.LOCAL_STEPS)) if several else 1
        lr = float(seen.know(Knowledge.LEARNING_RATE)) if steps > 1 else 0.0
        predicted = self.selection == "predicted"
        if predicted and steps > 1:
            raise ValueError(
                f'{steps} local steps are simulated for each vector; selection = "predicted" '
                'differentiates a single one. Set selection = "evaluated"'
            )
        known = seen if steps == 1 else _single(seen)
        found: list[tuple[DirectSearch, Candidate]] = []
        candidates, features = self.candidates(known, job), seen.spec.require(SpeechSpec).features
        least = self._least()
        remedy = "iterations, patience, or the number of candidates"
        estimate = candidates.estimate(job, least, least, remedy)
        kind: type[FrameChanges] = Differentiable if predicted else HeadOnly
        if self.layers == "all" or steps > 1:
            kind = Whole
        for candidate in candidates.tried:
            tried = [
                kind(model, target.to(job.device), list(theirs), lr=lr, steps=steps)
                for target in candidate.targets
            ]
            shapes = [(count, features) for count in candidate.lengths]
            far = distance_from(theirs, self.distance)
            search = DirectSearch(tried, far, shapes, job, predicted)
            with job.portion(len(candidates.tried) - len(found)):
                yield from self._iterations(search, job, None if found else estimate)
            search.end()
            found.append((search, candidate))
        search, candidate = min(found, key=lambda one: one[0].lowest)
        return self.claim(
            search.best * steps,
            Candidate([*candidate.targets] * steps, [*candidate.lengths] * steps),
            seen,
            objective=search.lowest,
            outcomes=tuple(one.outcome for one, _ in found),
            trace=tuple(job.trace),
            diagnostics={
                "distances": [one.lowest for one, _ in found],
                "kept": search.kept / max(1, search.drawn),
                "evaluated": search.evaluated / max(1, search.drawn),
                "step": search.step,
                "way": search.tried[0].way,
                **candidates.notes,
            },
        )

    def _iterations(
        self, search: DirectSearch, job: Job, estimate: TimeEstimate | None
    ) -> Iterator[DirectSearch]:
        """The search, once for each iteration that is to be made next."""
        search.step, recent = self.step, list[float]()
        for at in job.steps(self.iterations):
            if estimate is not None:
                estimate.step()
            if self.schedule == "cosine":
                search.step = self.step * math.cos(math.pi / 2 * at / self.iterations)
            yield search
            recent.append(search.lowest)
            job.progress(job.iterations, search.lowest)
            slow = at - search.halved >= self.patience and (
                recent[-1] >= (1 - self.fall) * recent[-1 - self.patience]
            )
            if self.schedule == "halving" and slow:
                search.step, search.halved = search.step / 2, at
                if search.step <= self.smallest:
                    search.outcome = "stalled"
                    return
        search.outcome = "steps" if len(recent) == self.iterations else "budget"

    def _least(self) -> int:
        """The least number of iterations for a candidate."""
        if self.schedule == "cosine":
            return self.iterations
        halvings = math.ceil(math.log2(self.step / self.smallest))
        return min(self.iterations, max(1, halvings) * self.patience)


def _single(seen: Observation) -> Observation:
    """Reduce an observation of several local steps on one utterance to that one utterance."""
    size, steps = int(seen.know(Knowledge.BATCH_SIZE)), int(seen.know(Knowledge.LOCAL_STEPS))
    rows, lengths = seen.labels, seen.lengths
    alike = (rows is None or bool((rows == rows[:1]).all())) and (
        lengths is None or len(set(lengths)) == 1
    )
    if size != steps or not alike:
        raise ValueError(
            f"{steps} local steps on {size} examples, not all the same utterance: HFGM's Algorithm "
            "4 is for steps that see one utterance each time; first-frames does without that"
        )
    return replace(
        seen,
        num_examples=1,
        labels=None if rows is None else rows[:1],
        lengths=None if lengths is None else list(lengths)[:1],
    )
