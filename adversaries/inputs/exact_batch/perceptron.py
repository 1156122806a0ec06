"""A perceptron, and the inputs of a batch from the inputs of its head."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from adversaries.inputs.exact_batch.layer import Layer
from adversaries.inputs.exact_batch.normalised import NormalisedLayer
from adversaries.inputs.layer_chain import ACTIVATIONS, VALLEYS, LayerChain, Link
from fedsim import VictimModel
from fedsim.gradients import two_logits


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
            model: The model, in float64 and the client's mode.
            shape: The shape of an input.

        Raises:
            ValueError: It is none; the message names the layer.
        """
        found = LayerChain.of(model, shape, (nn.Linear, nn.LayerNorm), (*ACTIVATIONS, *VALLEYS))
        layers = [_layer(one, model) for one in found.links]
        weight, bias = (two_logits(one, 2) for one in _arrays(found.head))  # of one logit alone
        return cls(tuple(layers), (weight, bias), shape, found.offset, found.scale)

    def errors(self, features: Tensor, targets: Tensor) -> Tensor:
        """The part of each example in the gradient of the logits (B, classes).

        Args:
            features: The inputs of the head (B, d).
            targets: Labels (B,), or soft ones (B, classes), each times the factor of its example.
        """
        weight, bias = self.head
        if targets.ndim == 1:
            targets = nn.functional.one_hot(targets, len(bias)).to(weight)
        shares = (features @ weight.T + bias).softmax(dim=1) * targets.sum(dim=1, keepdim=True)
        return (shares - targets) / len(targets)

    def features(self, inputs: Tensor) -> Tensor:
        """The inputs of the head (B, d) at inputs, flat (B, values), as the model takes them."""
        found = inputs * self.scale + self.offset
        for layer in self.layers:
            found = layer.outputs(found)
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
            found = layer.inputs(outputs, upstream, gradient, threshold)
            upstream = layer.errors(found, upstream) @ layer.weight
            outputs = found
        return (outputs - self.offset) / self.scale


def _layer(link: Link, model: VictimModel) -> Layer:
    """A layer, normalised or not.

    Raises:
        ValueError: What stands behind it cannot be undone.
    """
    if link.norm is None:
        return Layer(link.name, *_arrays(link.layer), link.behind)
    if link.layer.bias is None:
        raise ValueError(f"'{link.name}' has no bias, by which layer normalisation is undone")
    if f"{link.name}.bias" not in model.trained:
        raise ValueError(
            f"no gradient of '{link.name}.bias' is sent, by which layer normalisation is undone"
        )
    if not link.norm_first and link.behind.name not in ("relu", "none"):
        raise ValueError(
            f"layer normalisation behind {link.behind.name} hides mean and scale of its outputs"
        )
    one = torch.ones(link.outputs).to(link.layer.weight)
    return NormalisedLayer(
        link.name,
        *_arrays(link.layer),
        link.behind,
        one if link.norm.weight is None else link.norm.weight.detach(),
        0 * one if link.norm.bias is None else link.norm.bias.detach(),
        link.norm.eps,
        link.norm_first or link.behind.name == "none",
    )


def _arrays(layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor]:
    """Weight and bias, zeros without one."""
    weight = layer.weight.detach()
    return weight, torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias.detach()
