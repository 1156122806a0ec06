"""A perceptron's layers and activations, and the inputs of a batch from the inputs of its head."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.linalg import lstsq

from fedsim import VictimModel
from fedsim.gradients import layer_calls

PROBES = 4
"""Random inputs by which the functions between layers are recognised."""

THRESHOLDS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
"""Activations below these shares of their mean count as those of units that do not fire."""

DOUBTFUL = 10.0
"""Factor above a threshold below which a unit is left out at first."""

ROUNDS = 20
"""How often the units that fire are read anew from the layer's own forward pass."""

OUTLYING = 30.0
"""Units whose gradient is missed by more than this many medians are left out: one of the examples
was taken to fire, or not to, by mistake."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A function between two layers.

    Attributes:
        name: Its name.
        value: The function.
        inverse: Its inverse; None for ReLU, whose zeros have none.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    inverse: Callable[[Tensor], Tensor] | None

    def slope(self, before: Tensor) -> Tensor:
        """The derivative at values before the function."""
        at = before.detach().requires_grad_()
        (found,) = torch.autograd.grad(self.value(at).sum(), at)
        return found


def _inner(values: Tensor, low: float, high: float) -> Tensor:
    """Values moved off the bounds of a bounded function, by rounding."""
    return values.clamp(low + 1e-12, high - 1e-12)


ACTIVATIONS = (
    Activation("relu", torch.relu, None),
    Activation("none", lambda x: x, lambda x: x),
    Activation("sigmoid", torch.sigmoid, lambda a: torch.logit(_inner(a, 0, 1))),
    Activation("tanh", torch.tanh, lambda a: torch.atanh(_inner(a, -1, 1))),
    Activation("leaky_relu", nn.functional.leaky_relu, lambda a: torch.where(a < 0, a / 0.01, a)),
    Activation(
        "elu", nn.functional.elu, lambda a: torch.where(a < 0, torch.log1p(_inner(a, -1, 1)), a)
    ),
)
"""The functions that are recognised; those with a parameter have torch's default."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A fully connected layer behind the input or another one.

    Attributes:
        name: Its name.
        weight: W (units, inputs) float64.
        bias: b (units,), zeros without one.
        behind: The function that its outputs go through.
    """

    name: str
    weight: Tensor
    bias: Tensor
    behind: Activation

    def fitted(self, errors: Tensor, gradient: Tensor) -> Tensor:
        """The inputs X (B, inputs) in dW = dZ' X, given dZ (B, units) and dW."""
        found: Tensor = lstsq(errors.T, gradient).solution
        return found

    def inputs(
        self, outputs: Tensor, upstream: Tensor, gradient: Tensor, threshold: float
    ) -> Tensor:
        """Find the inputs of a batch.

        Args:
            outputs: The outputs behind the activation (B, units).
            upstream: The gradient of the loss by these outputs (B, units).
            gradient: dW (units, inputs).
            threshold: A share of the mean activation; see `THRESHOLDS`.

        Returns:
            X (B, inputs).
        """
        if self.behind.inverse is not None:
            before = self.behind.inverse(outputs)
            return self.fitted(upstream * self.behind.slope(before), gradient)
        sizes, level = outputs.abs(), threshold * outputs.abs().mean()
        sure = ((sizes > DOUBTFUL * level) | (sizes <= level)).all(dim=0)
        errors = upstream * (outputs > level)
        for _ in range(ROUNDS):
            found = self.fitted(errors[:, sure], gradient[sure])
            again = upstream * (found @ self.weight.T + self.bias > 0)
            missed = (again.T @ found - gradient).norm(dim=1)
            fits = missed <= OUTLYING * missed[missed > 0].median()
            if torch.equal(again, errors) and torch.equal(fits, sure):
                break
            errors, sure = again, fits
        return found

    def errors(self, inputs: Tensor, upstream: Tensor) -> Tensor:
        """dZ (B, units) at these inputs."""
        return upstream * self.behind.slope(inputs @ self.weight.T + self.bias)


@dataclass(frozen=True, slots=True)
class Perceptron:
    """A model as a chain of fully connected layers.

    Attributes:
        layers: All layers but the head, the first one first.
        head: The head's weight (classes, d) and bias (classes,).
        shape: The shape of an input.
        offset: What the model adds to an input in front of them, flat.
        scale: What it multiplies it by.
    """

    layers: tuple[Layer, ...]
    head: tuple[Tensor, Tensor]
    shape: tuple[int, ...]
    offset: Tensor
    scale: Tensor

    @classmethod
    def of(cls, model: VictimModel, shape: tuple[int, ...]) -> "Perceptron":
        """Recognise a perceptron by its layers' inputs and outputs on random inputs.

        Args:
            model: The model, in float64 and evaluation mode.
            shape: The shape of an input.

        Raises:
            ValueError: It is none; the message names the layer.
        """
        rng = torch.Generator().manual_seed(0)
        module = model.module
        device = next(module.parameters()).device
        probes = torch.rand(PROBES, *shape, generator=rng, dtype=torch.float64).to(device)
        probes = torch.cat([torch.zeros_like(probes[:1]), torch.ones_like(probes[:1]), probes])
        linear = {k: m for k, m in module.named_modules() if isinstance(m, nn.Linear)}
        with torch.no_grad(), layer_calls(linear) as calls:
            module(probes)
        order = [name for name, found in calls.items() if found]
        if any(len(found) > 1 for found in calls.values()) or order[-1:] != [model.head]:
            raise ValueError(
                "the model is no chain of fully connected layers that ends in its head"
            )
        weights = {f"{name}.weight" for name in order} | {f"{name}.bias" for name in order}
        if others := sorted({*model.parameters()} - weights):
            raise ValueError(
                f"'{others[0]}' is no fully connected layer, and inputs are recovered through "
                "such layers alone. inverting-gradients attacks other networks"
            )
        (first, _), *_ = calls[order[0]]
        flat = probes.flatten(1)
        if first.shape != flat.shape:
            raise ValueError(f"the layer '{order[0]}' does not take the input itself")
        offset, scale = first[0], first[1] - first[0]
        if not torch.allclose(first, flat * scale + offset) or not scale.all():
            raise ValueError(f"what the model does to inputs before '{order[0]}' is not known")
        layers = list[Layer]()
        for name, above in pairwise(order):
            before, after = calls[name][0][1], calls[above][0][0]
            behind = next(
                (
                    one
                    for one in ACTIVATIONS
                    if before.shape == after.shape and torch.allclose(one.value(before), after)
                ),
                None,
            )
            if behind is None:
                known = ", ".join(one.name for one in ACTIVATIONS)
                raise ValueError(
                    f"what stands between the layers '{name}' and '{above}' is none of {known}"
                )
            layers.append(Layer(name, *_arrays(linear[name]), behind))
        return cls(tuple(layers), _arrays(linear[model.head]), shape, offset, scale)

    def errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """The part of each example in the gradient of the logits (B, classes)."""
        weight, bias = self.head
        onehot = nn.functional.one_hot(labels, len(bias))
        return ((features @ weight.T + bias).softmax(dim=1) - onehot) / len(labels)

    def features(self, inputs: Tensor) -> Tensor:
        """The inputs of the head (B, d) at inputs, flat (B, values), as the model takes them."""
        found = inputs * self.scale + self.offset
        for layer in self.layers:
            found = layer.behind.value(found @ layer.weight.T + layer.bias)
        return found

    def inputs(
        self, features: Tensor, errors: Tensor, gradient: Mapping[str, Tensor], threshold: float
    ) -> Tensor:
        """Go down from the head to the inputs of a batch.

        Args:
            features: The inputs of the head (B, d).
            errors: The part of each example in the gradient of the logits (B, classes).
            gradient: The gradient by parameter name, float64.
            threshold: A share of the mean activation; see `THRESHOLDS`.

        Returns:
            Inputs, flat (B, values), as the model takes them.
        """
        outputs, upstream = features, errors @ self.head[0]
        for layer in reversed(self.layers):
            found = layer.inputs(outputs, upstream, gradient[f"{layer.name}.weight"], threshold)
            upstream = layer.errors(found, upstream) @ layer.weight
            outputs = found
        return (outputs - self.offset) / self.scale


def _arrays(layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Weight and bias, zeros without one."""
    weight = layer.weight.detach()
    return weight, torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias.detach()
