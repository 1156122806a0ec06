"""Base class of gradient matching attacks on inputs of a fixed shape."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from fedsim import Knowledge, Observation, Reconstruction
from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import Comparison, Match, Problem, in_groups, local_steps


class InputMatching(Adversary):
    """Base class of attacks that match the observed gradient with dummy inputs and labels.

    Victims of a round that have the same model, batch size and training are attacked in one batched
    optimisation, which does not change any result.
    """

    needs = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    recovers = frozenset({"inputs", "labels", "label_counts", "label_set", "objective", "outcomes"})
    group = 10

    distance: Literal["l2", "cosine", "l1+l2"] = "l2"
    """Between gradients: summed squares, 1 - cosine, or TAG's."""

    parameters: dict[str, Annotated[float, Field(ge=0)]] = Field(default={"*": 1.0})
    """What each parameter's distance counts, by name pattern; a parameter that no pattern fits
    is left out, such as {"head.*" = 10.0, "*" = 1.0}."""

    labels_from: Source | None = None
    """Where the labels come from: "none" (optimised with the inputs), "given" (the threat
    model grants LABELS), or another adversary by name, such as "idlg" or "llg"."""

    precision: Literal["float32", "float64"] = "float64"
    """floating-point type of the optimisation; float32 is faster and comes less close."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where gradient and model do not fit."""
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once: those with the same model and training in one optimisation."""
        labels = [self.labels(one, job) for one, job in zip(seen, jobs, strict=True)]
        models = [one.know(Knowledge.MODEL) for one in seen]
        keys = [(int(one.know(Knowledge.BATCH_SIZE)), self.training(one)) for one in seen]

        def attack(some: list[int]) -> list[Reconstruction]:
            views, own = [seen[i] for i in some], [jobs[i] for i in some]
            size, (steps, lr) = keys[some[0]]
            problem = Problem(
                models[some[0]],
                [one.know(Knowledge.GRADIENT) for one in views],
                views[0].spec,
                size=size,
                labels=[labels[i] for i in some],
                shuffled=steps > 1,
                comparison=Comparison(
                    self.distance, self.parameters, own[0].device, getattr(torch, self.precision)
                ),
                simulate=local_steps(steps, lr) if steps > 1 else None,
            )
            return [
                problem.claim(
                    victim,
                    match,
                    own[victim].trace,
                    exact_gradient=views[victim].exact,
                    **self.notes(match, views[victim]),
                )
                for victim, match in enumerate(self.match(problem, own))
            ]

        return in_groups(models, keys, attack, most=lambda victim: self.at_once(seen[victim]))

    @abstractmethod
    def match(self, problem: Problem, jobs: Sequence[Job]) -> list[Match]:
        """Minimise the objective; one job and one match for each victim."""

    def training(self, seen: Observation) -> tuple[int, float]:
        """Local steps to simulate, and their learning rate; 1 and 0 where there is none."""
        return 1, 0.0

    def at_once(self, seen: Observation) -> int:
        """The largest number of victims in one optimisation."""
        return self.group

    def notes(self, match: Match, seen: Observation) -> dict[str, Any]:
        """Further diagnostics of a match."""
        return {}
