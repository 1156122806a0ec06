"""Gradient matching as an objective: how far a dummy batch's gradient is from an observed one."""

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor

from fedsim.gradients.chain import ChainGradients
from fedsim.gradients.distances import (
    Gradients,
    Outer,
    cosine_distance,
    l1_l2_distance,
    squared_distance,
)
from fedsim.gradients.dummy import DummyGradients
from fedsim.gradients.matching import Match
from fedsim.records import Reconstruction, Spec
from fedsim.victim import VictimModel

Distance = Callable[[Gradients, Gradients, Mapping[str, float] | None], Tensor]

DistanceName = Literal["l2", "cosine", "l1+l2"]

DISTANCES: dict[DistanceName, Distance] = {
    "l2": squared_distance,
    "cosine": cosine_distance,
    "l1+l2": l1_l2_distance,
}
"""Distances by name: DLG's, Inverting Gradients', TAG's."""


def parameter_weights(names: Sequence[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Weight of each parameter in a distance: that of the first pattern that fits its name.

    Args:
        names: Names of the parameters.
        wanted: Weights by shell pattern, such as {"head.*": 1.0}.

    Returns:
        Weights above 0 by name. A parameter that no pattern fits is left out.

    Raises:
        ValueError: A pattern fits no name, or no parameter is left.
    """
    for pattern in wanted:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"parameters: '{pattern}' fits none of the parameters that were sent and that the "
                f"model has: {', '.join(names)}"
            )
    found = {}
    for name in names:
        fits = [weight for pattern, weight in wanted.items() if fnmatchcase(name, pattern)]
        if fits and fits[0] > 0:
            found[name] = fits[0]
    if not found:
        raise ValueError("parameters: nothing is left to match; give one a weight above 0")
    return found


def unmatched_patterns(model: VictimModel, wanted: Mapping[str, float]) -> list[str]:
    """Warnings, for `Adversary.cautions`, of patterns that match none of a model's parameters."""
    try:
        parameter_weights([*model.parameters()], wanted)
    except ValueError as error:
        return [str(error)]
    return []


@dataclass(frozen=True, slots=True)
class Comparison:
    """How gradients are compared, and where and how exactly that is computed.

    Attributes:
        distance: A key of `DISTANCES`.
        parameters: Weights of the parameters by name pattern (`parameter_weights`); None: 1 each.
        device: Where the victim's model is copied to.
        dtype: Floating-point type of the model's copy and of the points.
    """

    distance: DistanceName = "l2"
    parameters: Mapping[str, float] | None = None
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float64


L2 = Comparison()


class Problem:
    """The distance between observed gradients and those of dummy batches, for V victims at once.

    A point is a flat vector: the inputs of a batch, then its label logits where the labels are not
    given, then the labels themselves where they are `shuffled`. Called with points (R, n) and
    victims (R,), as `minimise` does, it returns (R,).

    model: what all V victims started from; it is copied. observed: each victim's gradient by name.
    size: examples in each batch. labels: each victim's hard labels (size,), or None to search
    for soft ones. shuffled: each start has the given labels in a random order of its own, for a
    `simulate` to which the order of the examples matters. comparison: how gradients are compared.
    simulate: gradients (R, *shape) of dummy batches; `DummyGradients` of the model where left out.

    Raises `ValueError` where gradient and model do not fit, and for a gradient that holds NaN or
    Inf or is zero throughout.
    """

    def __init__(
        self,
        model: VictimModel,
        observed: Sequence[Mapping[str, Tensor]],
        spec: Spec,
        *,
        size: int,
        labels: Sequence[Tensor | None],
        shuffled: bool = False,
        comparison: Comparison = L2,
        simulate: Callable[[VictimModel, list[str]], Callable[[Tensor, Tensor], Gradients]]
        | None = None,
    ) -> None:
        if spec.input_shape is None:
            raise ValueError("matching needs inputs of a fixed shape; this task's inputs vary")
        device, dtype, distance = comparison.device, comparison.dtype, comparison.distance
        self.model = model.copy().to(device)
        self.model.module.to(dtype)
        sent = [name for name in self.model.parameters() if all(name in one for one in observed)]
        if not sent:
            raise ValueError("the gradient names none of the model's trained parameters")
        self.weights = parameter_weights(sent, comparison.parameters or {"*": 1.0})
        self.names = list(self.weights)
        shapes = {name: value.shape for name, value in self.model.parameters().items()}
        for name in self.names:
            for one in observed:
                if one[name].shape != shapes[name]:
                    raise ValueError(
                        f"the gradient of '{name}' has shape {tuple(one[name].shape)}, and the "
                        f"parameter {tuple(shapes[name])}"
                    )
        theirs = {
            name: torch.stack([one[name] for one in observed]).to(device, dtype)
            for name in self.names
        }
        for name, value in theirs.items():
            if not torch.isfinite(value).all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        nothing = {name: torch.zeros_like(value) for name, value in theirs.items()}
        if not (squared_distance(nothing, theirs) > 0).all():
            raise ValueError("the gradient is zero throughout: there is nothing to match")
        scales = DISTANCES[distance](nothing, theirs, self.weights)
        self.scales: list[float] = scales.tolist()
        """The distance of each victim's gradient from one of zeros: for "l2" its squared norm,
        every parameter counted as it is in the matching, for "cosine" 1."""
        self.inputs_shape = (size, *spec.input_shape)
        self.pixels = torch.Size(self.inputs_shape).numel()
        self.spec, self.classes = spec, spec.classes
        self.device, self.dtype = torch.device(device), dtype
        for given in labels:
            if given is not None and not (
                len(given) == size and given.min() >= 0 and given.max() < self.classes
            ):
                raise ValueError(
                    f"labels {given.tolist()} for a batch of {size}; expected {size} labels from 0 "
                    f"to {self.classes - 1}"
                )
        hard = [given for given in labels if given is not None]
        self.labels = torch.stack(hard).to(device) if hard else None
        self.shuffled = shuffled and self.labels is not None
        """Whether a point holds its own order of the given labels."""
        self._distance = DISTANCES[distance]
        if simulate is None:
            shape, classes = spec.input_shape, spec.classes
            dummy = DummyGradients(self.model, self.names, shape=shape, classes=classes)
            self._gradients: Callable[[Tensor, Tensor], Gradients] = dummy
            self.batched = dummy.batched
            self._chain = ChainGradients.of(self.model, self.names, shape=shape, classes=classes)
        else:
            self._gradients, self.batched = simulate(self.model, self.names), False
            self._chain = None
        self._theirs: dict[str, Any] = dict(theirs)
        if self.batched and size == 1 and distance != "l1+l2":
            for name, value in theirs.items():
                if value.ndim == 3 and (product := Outer.of(value)) is not None:
                    self._theirs[name] = product

    @property
    def size(self) -> int:
        """Length n of a point."""
        return self.pixels + self.inputs_shape[0] * self._tail

    @property
    def _tail(self) -> int:
        """Coordinates of each example besides its inputs."""
        return self.classes if self.labels is None else int(self.shuffled)

    def start(self, victim: int, rng: torch.Generator) -> Tensor:
        """Draw a starting point (n,) of a victim, N(0, 1) in every coordinate to be optimised."""
        sought = self.pixels if self.shuffled else self.size
        point = torch.randn(sought, generator=rng).to(self.device, self.dtype)
        return torch.cat([point, self.order(victim, rng)]) if self.shuffled else point

    def order(self, victim: int, rng: torch.Generator) -> Tensor:
        """Draw an order of a victim's given labels, as the end of a `shuffled` point holds them."""
        if self.labels is None:
            raise ValueError("no labels are given that could be put in an order")
        order = torch.randperm(self.inputs_shape[0], generator=rng).to(self.device)
        return self.labels[victim, order].to(self.dtype)

    def split(self, points: Tensor, victims: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (R, B, ...) and targets (R, B, classes), one-hot where the labels are given."""
        inputs = points[:, : self.pixels].view(-1, *self.inputs_shape)
        if self.labels is not None:
            # No gradient reaches labels in a point, so that no optimizer moves them.
            hard = points[:, self.pixels :].long() if self.shuffled else self.labels[victims]
            classes = torch.arange(self.classes, device=self.device)
            return inputs, (hard[..., None] == classes).to(self.dtype)
        logits = points[:, self.pixels :].view(-1, self.inputs_shape[0], self.classes)
        return inputs, logits.softmax(dim=2)

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Distances (R,) of the gradients of points (R, n) from those of victims (R,) int64."""
        inputs, targets = self.split(points, victims)
        # Whoever records the calls of a layer needs the model to be called.
        recorded = any(layer._forward_hooks for layer in self.model.module.modules())
        gradients = self._gradients if self._chain is None or recorded else self._chain
        ours = gradients(inputs, targets)
        theirs = {name: value[victims] for name, value in self._theirs.items()}
        return self._distance(ours, theirs, self.weights)

    def claim(
        self, victim: int, match: Match, trace: Sequence[tuple[int, float]], **diagnostics: Any
    ) -> Reconstruction:
        """The reconstruction that a match stands for.

        Args:
            victim: Index of the victim.
            match: Its match.
            trace: Pairs of iteration and objective.
            **diagnostics: Added to the reconstruction's diagnostics.

        Returns:
            A float32 input and a label for each example, and how the starts ended.
        """
        inputs, soft = self.split(match.point[None], torch.tensor([victim], device=self.device))
        return claim_labels(
            soft[0].argmax(dim=1).cpu(),
            inputs=list(inputs[0].float().cpu()),
            objective=match.value,
            outcomes=tuple(match.outcomes),
            trace=tuple(trace),
            diagnostics={"closures": match.evaluations, **diagnostics},
        )

    def blocks(self) -> Tensor:
        """Coordinates of a point that belong to each example, (B, n) bool."""
        size = self.inputs_shape[0]
        each = (self.pixels // size, self._tail)
        of = torch.cat([torch.arange(size).repeat_interleave(count) for count in each])
        return (of[None] == torch.arange(size)[:, None]).to(self.device)


def claim_labels(labels: Tensor, **others: Any) -> Reconstruction:
    """Claim the labels of a batch, their counts and their set.

    Args:
        labels: One label for each example, (N,) int64.
        others: Further fields of the reconstruction.
    """
    counts = Counter(labels.tolist())
    return Reconstruction(
        labels=labels,
        label_counts=dict(sorted(counts.items())),
        label_set=frozenset(counts),
        **others,
    )


def in_groups(
    models: Sequence[VictimModel],
    keys: Sequence[Hashable],
    attack: Callable[[list[int]], list[Reconstruction]],
    *,
    most: Callable[[int], int] | None = None,
) -> list[Reconstruction]:
    """Attack victims in groups that fit one `Problem`.

    Args:
        models: The victims' models.
        keys: What has to be equal in a group besides the model, one a victim.
        attack: Attacks the victims at some positions and returns a reconstruction of each.
        most: Number of victims that one optimisation may hold, by the position of one of them;
            None: no limit.

    Returns:
        The reconstruction of each victim, in the order of `models`.
    """
    found: dict[int, Reconstruction] = {}
    for group in alike(models, keys):
        width = most(group[0]) if most and len(group) > 1 else len(group)
        for at in range(0, len(group), width):
            some = group[at : at + width]
            found |= dict(zip(some, attack(some), strict=True))
    return [found[index] for index in range(len(models))]


def alike(models: Sequence[VictimModel], keys: Sequence[Hashable]) -> list[list[int]]:
    """Group victims that fit into one `Problem`: with the same weights, modes and equal keys.

    Args:
        models: The victims' models.
        keys: What has to be equal besides, such as the number of examples.

    Returns:
        Positions of the victims of each group.
    """
    found: list[list[int]] = []
    for index, (model, key) in enumerate(zip(models, keys, strict=True)):
        for group in found:
            if keys[group[0]] == key and _same(models[group[0]], model):
                group.append(index)
                break
        else:
            found.append([index])
    return found


def _same(one: VictimModel, other: VictimModel) -> bool:
    """Whether two models have the same weights, and the same layers in training mode."""
    a, b = one.module.state_dict(), other.module.state_dict()
    modes = ([layer.training for layer in model.module.modules()] for model in (one, other))
    return (
        a.keys() == b.keys()
        and operator.eq(*modes)
        and all(torch.equal(a[name], b[name]) for name in a)
    )
