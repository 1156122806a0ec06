"""A perceptron's layers, and the inputs of a batch from the inputs of its head."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.linalg import lstsq

from adversaries.inputs.layer_chain import ACTIVATIONS, VALLEYS, Activation, LayerChain
from fedsim import VictimModel

THRESHOLDS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
"""Activations below these shares of their mean count as those of units that do not fire."""

DOUBTFUL = 10.0
"""Factor above a threshold below which a unit is left out at first."""

ROUNDS = 20
"""How often slopes are read anew from the layer's own forward pass."""

OUTLYING = 30.0
"""Units whose gradient is missed by more than this many medians are left out: one of the examples
was taken to fire, or not to, by mistake."""


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
            errors = upstream * self.behind.slope(before)
            if self.behind.lowest is None:
                return self.fitted(errors, gradient)
            # Outputs far above the minimum are rarely of the falling branch: their units first.
            least = outputs.amin(dim=0)
            sure = least >= least.median()
        else:
            sizes, level = outputs.abs(), threshold * outputs.abs().mean()
            sure = ((sizes > DOUBTFUL * level) | (sizes <= level)).all(dim=0)
            errors = upstream * (outputs > level)
        for _ in range(ROUNDS):
            found = self.fitted(errors[:, sure], gradient[sure])
            again = self.errors(found, upstream)
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
        found = LayerChain.of(model, shape, (nn.Linear,), (*ACTIVATIONS, *VALLEYS))
        layers = [Layer(one.name, *_arrays(one.layer), one.behind) for one in found.links]
        return cls(tuple(layers), _arrays(found.head), shape, found.offset, found.scale)

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


def _arrays(layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Weight and bias, zeros without one."""
    weight = layer.weight.detach()
    return weight, torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias.detach()
