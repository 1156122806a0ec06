"""Base class of gradient matching attacks on inputs of a fixed shape."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.known_features import KnownBatch
from fedsim import Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.adversary import Adversary, Job, Source
from fedsim.gradients import (
    Comparison,
    Match,
    Problem,
    batch_statistics,
    in_groups,
    kept_values,
    local_steps,
)
from fedsim.gradients.problem import unmatched_patterns

SENT = (
    Requirement("optimizer", "it matches a gradient, not steps of it", only=("sgd",)),
    Requirement("noise", "the dummy matches the noise as well", most=0.1),
    Requirement("zeros", "coordinates that were not sent are matched as zeros", most=0.1),
)
"""What matching requires of the update that the client sent."""

TRAINED = (
    Requirement("normalised_batches", "a dummy batch has statistics of its own", most=1),
    Requirement("dropout", "the masks are not known", most=0),
)
"""What matching requires of the model in training."""

HELD = 4 * 2**30
"""Bytes that the passes of one optimisation may hold, for all its victims together. The same on all
machines, because results depend by rounding on which victims are attacked together."""

COPIES = 8
"""How often second derivatives hold the values of a gradient and those that a pass keeps."""

PROBED = 4
"""The largest number of classes whose weights in the loss are looked for."""

POOLED = Requirement("max_pooling", "no derivative shows which pixel a window takes", most=0)
"""What matching by second derivatives requires of the model."""


class InputMatching(Adversary):
    """Base class of attacks that match the observed gradient with dummy inputs and labels.

    Victims of a round that have the same model, batch size and training are attacked in one batched
    optimisation, which changes results by rounding alone; a long search makes more of it.
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

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of patterns that match no parameter and of a loss that weighs classes.

        The warnings of `labels_from` are passed on.
        """
        found = [*super().cautions(model), *unmatched_patterns(model, self.parameters)]
        if weighs_classes(model):
            found.append(
                "the loss has class weights, and PyTorch divides it by other sums for labels than "
                f"for class probabilities, with which {self.name} computes gradients: it is not "
                "expected to find inputs"
            )
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Match the gradient; raises `ValueError` where gradient and model do not fit."""
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Match many at once: those with the same model and training in one optimisation."""
        known = [self.known(one, job) for one, job in zip(seen, jobs, strict=True)]
        labels = [
            self.labels(one, job) if found is None else found.labels
            for one, job, found in zip(seen, jobs, known, strict=True)
        ]
        models = [one.know(Knowledge.MODEL) for one in seen]
        keys = [(int(one.know(Knowledge.BATCH_SIZE)), self.alike(one)) for one in seen]

        def attack(some: list[int]) -> list[Reconstruction]:
            views, own = [seen[i] for i in some], [jobs[i] for i in some]
            problem = self.problem(views, [labels[i] for i in some], own[0].device)
            return [
                problem.claim(
                    victim,
                    match,
                    own[victim].trace,
                    exact_gradient=views[victim].exact,
                    **self.notes(match, views[victim]),
                )
                for victim, match in enumerate(
                    self.match(problem, own, views, [known[i] for i in some])
                )
            ]

        return in_groups(models, keys, attack, most=lambda victim: self.at_once(seen[victim]))

    def known(self, seen: Observation, job: Job) -> KnownBatch | None:
        """What the adversary that the setting `features_from` names finds; None without one."""
        if getattr(self, "features_from", None) is None:
            return None
        return KnownBatch.found_by(self.parts()["features_from"], seen, job)

    def problem(
        self,
        seen: Sequence[Observation],
        labels: Sequence[Tensor | None],
        device: torch.device | str,
    ) -> Problem:
        """The matching of these victims' gradients, at the model that they share."""
        steps, lr = self.training(seen[0])
        return Problem(
            seen[0].know(Knowledge.MODEL),
            [one.know(Knowledge.GRADIENT) for one in seen],
            seen[0].spec,
            size=int(seen[0].know(Knowledge.BATCH_SIZE)),
            labels=labels,
            shuffled=steps > 1,
            comparison=Comparison(
                self.distance, self.parameters, device, getattr(torch, self.precision)
            ),
            simulate=local_steps(steps, lr) if steps > 1 else None,
        )

    @abstractmethod
    def match(
        self,
        problem: Problem,
        jobs: Sequence[Job],
        seen: Sequence[Observation],
        known: Sequence[KnownBatch | None],
    ) -> list[Match]:
        """Minimise the objective; one job, one observation and one match for each victim.

        Where features are known, they and the problem's labels are in the same order.
        """

    def alike(self, seen: Observation) -> Hashable:
        """What victims in one optimisation share, besides the model and the batch size."""
        return self.training(seen)

    def training(self, seen: Observation) -> tuple[int, float]:
        """Local steps to simulate, and their learning rate; 1 and 0 where there is none."""
        return 1, 0.0

    def passes(self, seen: Observation) -> int:
        """Passes of a victim that one evaluation of the objective holds."""
        return self.training(seen)[0]

    def at_once(self, seen: Observation) -> int:
        """The largest number of victims in one optimisation: those whose passes fit into `HELD`.

        Second derivatives hold the gradient and what a pass keeps up to eight times (measured on a
        ResNet-18 with one to sixteen images of 64 x 64 and 224 x 224 pixels).
        """
        model, spec = seen.know(Knowledge.MODEL), seen.spec
        examples = int(seen.know(Knowledge.BATCH_SIZE))
        weights = sum(weight.numel() for weight in model.parameters().values())
        kept = examples * kept_values(model, spec.input_shape or (), spec.classes)
        size = getattr(torch, self.precision).itemsize
        held: int = size * COPIES * self.passes(seen) * (weights + kept)
        return min(self.group, max(1, HELD // held))

    def notes(self, match: Match, seen: Observation) -> dict[str, Any]:
        """Further diagnostics of a match."""
        return {}


def known_statistics(seen: Observation) -> dict[str, tuple[Tensor, Tensor]]:
    """The statistics of the victim's batch by BatchNorm layer, from the buffers after its one step.

    Args:
        seen: The observation.

    Returns:
        Mean and variance, as `batch_statistics` has them; empty if `BUFFERS` is not granted or
        there were several steps.
    """
    if not (seen.buffers and (seen.exact or seen.steps == 1)):
        return {}
    return batch_statistics(seen.know(Knowledge.MODEL), seen.buffers)


def weighs_classes(model: VictimModel) -> bool:
    """Whether the loss of a one-hot label differs from that of the label itself.

    PyTorch's cross-entropy with weights of classes divides by their sum, but by the number of
    examples for probabilities of classes.

    Args:
        model: A model for inputs of a fixed shape.
    """
    if model.spec is None or model.spec.input_shape is None:
        return False
    own = model.copy()
    own.module.eval()
    like, classes = next(own.module.parameters()), model.spec.classes
    inputs = torch.rand(1, *model.spec.input_shape, generator=torch.Generator().manual_seed(0))
    for label in range(min(classes, PROBED)):
        hot = torch.eye(classes)[[label]].to(like)
        try:
            with torch.no_grad():
                hard = own.loss(inputs.to(like), torch.tensor([label], device=like.device))
                soft = own.loss(inputs.to(like), hot)
        except Exception:  # a loss that takes no probabilities is refused where it is attacked
            return False
        if not torch.isclose(hard, soft.to(hard), rtol=1e-3):
            return True
    return False
