"""repeated-gradients: inputs and labels by matching the gradients of several rounds at once."""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from adversaries.inputs.input_matching import POOLED, SENT, TRAINED, InputMatching
from adversaries.inputs.known_features import KnownBatch
from fedsim import (
    ImageSpec,
    Job,
    Knowledge,
    Observation,
    Reconstruction,
    Requirement,
    TabularSpec,
    VictimModel,
)
from fedsim.gradients import LBFGS, Match, Problem, Restarts, Rules, compiled, minimise

MATCHED, ROUNDING = 1e-9, 1e-8
"""Shares of the gradients' squared norms below which they are matched, and below which what is left
of a start that stalls is rounding."""


class RepeatedGradients(InputMatching):
    """Reconstruct examples that a client uses in several rounds, from all of these gradients.

    Dummy inputs x' and labels y' minimise the sum over rounds r of D_r = ||dL(x', y'; w_r)/dW -
    g_r||^2, where w_r is the global model of round r and g_r the client's gradient: the present one
    and earlier ones (`HISTORY`). Every round adds equations for the same unknowns. If a defense
    adds Gaussian noise of one strength to each gradient, the sum is the negative log-likelihood up
    to a factor, so that independent noise averages out over the rounds.

    L-BFGS with backtracking searches from N(0, 1), as dlg's does; of several starts the one with
    the lowest sum is claimed.

    Which rounds hold the same examples is not observed. `recur = "all"` assumes that all do: a
    client that holds no more examples than a batch. `recur = "labels"` takes the earlier rounds
    whose labels, as `labels_from` infers them, are those of the present round: a client that goes
    through a few examples again and again (`training.batching = "epochs"`). If two rounds hold
    other examples with the same labels, no dummy fits both, and the objective stays high.

    Needs the whole gradient, the model and the number of examples of each round, and assumes one
    local step (more are matched as one batch at the initial weights) and smooth activations. Claims
    the inputs and labels of the present round, as dlg does.
    """

    name = "repeated-gradients"
    keywords = (
        "gradient inversion",
        "gradient matching",
        "leakage over rounds",
        "history",
        "image reconstruction",
    )
    needs = InputMatching.needs | Knowledge.HISTORY
    suits = (ImageSpec, TabularSpec)
    cites = (
        "Li et al., Temporal Gradient Inversion Attacks with Robust Optimization, 2023 "
        "(arXiv:2306.07883), without its robust statistics; matching: Zhu et al., Deep Leakage "
        "from Gradients, NeurIPS 2019"
    )
    requirements = (
        Requirement("examples", "every example adds unknowns, and no equations", most=8),
        Requirement("steps", "the gradient is matched as that of one step", most=1),
        *SENT,
        POOLED,
        *TRAINED,
    )

    recur: Literal["all", "labels"] = "all"
    """Earlier rounds that are matched: "all" with as many examples, or of these the ones with the
    same labels ("labels"; `labels_from` must then name an adversary)."""

    window: int = Field(default=16, ge=1)
    """The largest number of rounds that are matched, the latest ones."""

    iterations: int = Field(default=300, ge=1)
    """L-BFGS outer steps a start, of 20 evaluations each."""

    restarts: int = Field(default=3, ge=0)
    """New starts when one diverges or stalls, which with noise each does; 0: a single start."""

    pairs: int = Field(default=100, ge=1)
    """Pairs of steps and changes of gradient that L-BFGS remembers."""

    @model_validator(mode="after")
    def _labels_are_inferred(self) -> Self:
        if self.recur == "labels" and self.labels_from in (None, "given"):
            raise ValueError(
                'recur = "labels" compares labels of several rounds, and those of earlier ones are '
                'never granted: name an adversary that infers them, such as labels_from = "idlg"'
            )
        return self

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once: those with the same models in one optimisation."""
        recurring = [
            replace(one, history=self._recurring(one, job))
            for one, job in zip(seen, jobs, strict=True)
        ]
        return super().reconstruct_many(recurring, jobs)

    def _recurring(self, seen: Observation, job: Job) -> tuple[Observation, ...]:
        """The earlier observations that are matched."""
        size = seen.know(Knowledge.BATCH_SIZE)
        found = [
            one
            for one in seen.know(Knowledge.HISTORY)
            if one.num_examples == size and _usable(one.know(Knowledge.GRADIENT))
        ]
        if self.recur == "labels":
            now = _sorted(self.labels(seen, job))
            found = [one for one in found if self._has_labels(one, job, now)]
        return tuple(found[max(0, len(found) + 1 - self.window) :])

    def _has_labels(self, seen: Observation, job: Job, labels: list[int]) -> bool:
        """Whether an observation has these labels; False for one that shows none."""
        try:
            return _sorted(self.labels(seen, job)) == labels
        except ValueError:
            return False

    def alike(self, seen: Observation) -> Hashable:
        """Victims in one optimisation also share the models of the earlier rounds."""
        return tuple(_digest(one.know(Knowledge.MODEL)) for one in _earlier(seen))

    def passes(self, seen: Observation) -> int:
        """One at the model of each round."""
        return 1 + len(_earlier(seen))

    def match(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        seen: Sequence[Observation],
        known: Sequence[KnownBatch | None],
    ) -> list[Match]:
        """Minimise the sum of the rounds' distances by L-BFGS."""
        labels: list[Tensor | None] = (
            [None] * len(seen) if problem.labels is None else list(problem.labels)
        )
        rounds = zip(*map(_earlier, seen), strict=True)
        problems = [problem, *(self.problem(round, labels, problem.device) for round in rounds)]
        scales = [sum(one.scales[victim] for one in problems) for victim in range(len(seen))]

        def together(points: Tensor, victims: Tensor) -> Tensor:
            return torch.stack([one(points, victims) for one in problems]).sum(dim=0)

        return minimise(
            compiled(together, jobs[0]),
            lambda victim: problem.start(victim, jobs[victim].rng),
            jobs,
            lambda starts: LBFGS(starts, history=self.pairs, backtracking=True),
            [
                Rules(
                    iterations=self.iterations,
                    matched=MATCHED * scale,
                    floor=ROUNDING * scale,
                    hopeless=scale,
                )
                for scale in scales
            ],
            restarts=Restarts(self.restarts),
        )

    def notes(self, match: Match, seen: Observation) -> dict[str, Any]:
        """The number of rounds that were matched."""
        return {"rounds": 1 + len(_earlier(seen)), "restarts": len(match.outcomes) - 1}


def _earlier(seen: Observation) -> tuple[Observation, ...]:
    return seen.history or ()


def _usable(gradient: Mapping[str, Tensor]) -> bool:
    """Whether a gradient is finite and not zero throughout."""
    values = gradient.values()
    return all(map(_finite, values)) and any(bool(value.any()) for value in values)


def _finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


def _sorted(labels: Tensor | None) -> list[int]:
    return [] if labels is None else sorted(labels.tolist())


def _digest(model: VictimModel) -> str:
    digest = hashlib.sha256()
    for value in model.module.state_dict().values():
        digest.update(value.cpu().numpy().tobytes())
    return digest.hexdigest()
