"""Layers of a chain: their part in the gradient, and in its derivative by the inputs.

`ChainGradients` calls `forward` from the inputs to the logits, `gradients` and `back` from there to
the first layer with weights, and for the derivative `along` from that layer to the logits, then
`down` to the inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(slots=True)
class Kept:
    """What a layer keeps of one evaluation of N = R B examples.

    Attributes:
        shape: Shape of its inputs.
        entered: Inputs of a linear layer (N, in), or patches of a convolution's (N, in, places).
        places: Height and width of a convolution's outputs.
        delta: Derivatives z' of the loss by the outputs of a linear layer or convolution.
        came: Derivatives a' of the loss by the outputs of an activation.
        slope: Derivative s' of an activation, at its inputs.
        bend: The derivative of s' by the activation's outputs.
        by: The derivative through `gradients` and `back`, by its inputs or an activation's outputs.
    """

    shape: torch.Size
    entered: Tensor = field(init=False)
    places: torch.Size = field(init=False)
    delta: Tensor = field(init=False)
    came: Tensor = field(init=False)
    slope: Tensor = field(init=False)
    bend: Tensor = field(init=False)
    by: Tensor | None = None


class Step:
    """One layer of a chain; this class serves `nn.Flatten`.

    Attributes:
        name: Name of the layer.
        layer: The layer.
        wanted: Which of its parameters' gradients are computed, "weight" and "bias".
        weighs: Whether it has weights.
    """

    weighs = False

    def __init__(self, name: str, layer: Any, names: list[str]) -> None:
        self.name, self.layer = name, layer
        keys = (key for key, _ in layer.named_parameters(recurse=False))
        self.wanted = [key for key in keys if f"{name}.{key}" in names]

    def factors(self, size: int) -> bool:
        """Whether `gradients` returns the weight's as two factors, for batches of a size."""
        return False

    def forward(self, value: Tensor) -> tuple[Tensor, Kept]:
        """Compute outputs (N, ...) from inputs (N, ...)."""
        return self.layer(value), Kept(value.shape)

    def gradients(self, delta: Tensor, own: Kept, rows: int) -> list[Tensor]:
        """Compute the wanted parameters' gradients, of R batches, from z' (N, ...)."""
        return []

    def back(self, delta: Tensor, own: Kept) -> Tensor:
        """Compute the loss's derivative by the inputs from that by the outputs."""
        return delta.view(own.shape)

    def along(self, by: Tensor | None, own: Kept, given: Iterator[Tensor], rows: int) -> Tensor:
        """Differentiate `gradients` and `back` by z'.

        Args:
            by: Derivative by what `back` returned; None: `back` was not called.
            own: What the layer kept; it takes in the derivative by the inputs.
            given: Derivatives by what `gradients` returned come next in it.
            rows: Number of batches, R.
        """
        assert by is not None  # noqa: S101 - the first layer of this pass has weights
        return by.flatten(1)

    def down(self, by: Tensor, own: Kept) -> Tensor:
        """Compute the derivative by the inputs from that by the outputs."""
        return by.view(own.shape)


class Activation(Step):
    """A sigmoid or tanh."""

    def forward(self, value: Tensor) -> tuple[Tensor, Kept]:
        """Compute h = s(z)."""
        h, own = self.layer(value), Kept(value.shape)
        if isinstance(self.layer, nn.Tanh):
            own.slope, own.bend = 1 - h.square(), -2 * h
        else:
            own.slope, own.bend = h * (1 - h), 1 - 2 * h
        return h, own

    def back(self, delta: Tensor, own: Kept) -> Tensor:
        """Compute a' s'."""
        own.came = delta
        return delta * own.slope

    def along(self, by: Tensor | None, own: Kept, given: Iterator[Tensor], rows: int) -> Tensor:
        """Differentiate a' s' by a', and by h."""
        assert by is not None  # noqa: S101 - the first layer of this pass has weights
        own.by = by * own.came * own.bend
        return by * own.slope

    def down(self, by: Tensor, own: Kept) -> Tensor:
        """Add the derivative by h through s', and go on to z."""
        return (by if own.by is None else by + own.by) * own.slope


class Linear(Step):
    """A linear layer on vectors (N, in), with dL/dW = z' a^T."""

    weighs = True

    def factors(self, size: int) -> bool:
        """Whether there is one example, so that z' and a are the factors."""
        return size == 1

    def forward(self, value: Tensor) -> tuple[Tensor, Kept]:
        """Compute W a + b."""
        own = Kept(value.shape)
        own.entered = value
        return functional.linear(value, self.layer.weight, self.layer.bias), own

    def gradients(self, delta: Tensor, own: Kept, rows: int) -> list[Tensor]:
        """Compute z' a^T, or its factors, and z', summed over each batch."""
        own.delta, found = delta, []
        batches, entered = (_split(each, rows) for each in (delta, own.entered))
        for key in self.wanted:
            if key == "bias":
                found.append(batches.sum(dim=1))
            elif len(delta) == rows:
                found += [delta.clone(), own.entered.clone()]
            else:
                found.append(batches.mT @ entered)
        return found

    def back(self, delta: Tensor, own: Kept) -> Tensor:
        """Compute W^T z'."""
        found: Tensor = delta @ self.layer.weight
        return found

    def along(self, by: Tensor | None, own: Kept, given: Iterator[Tensor], rows: int) -> Tensor:
        """Differentiate z' a^T and W^T z' by z', and by a."""
        onward = torch.zeros_like(own.delta) if by is None else by @ self.layer.weight.T
        batches, entered = (_split(each, rows) for each in (own.delta, own.entered))
        for key in self.wanted:
            slope = next(given)
            if key == "bias":
                onward = onward + _repeated(slope, batches.shape[1])
            elif len(own.delta) == rows:
                onward, own.by = onward + slope, next(given)
            else:
                onward = onward + (entered @ slope.mT).flatten(0, 1)
                own.by = (batches @ slope).flatten(0, 1)
        return onward

    def down(self, by: Tensor, own: Kept) -> Tensor:
        """Compute W^T by, and add what came through the gradient."""
        found: Tensor = by @ self.layer.weight
        return found if own.by is None else found + own.by


class Convolution(Step):
    """A 2-d convolution, as a product with the patches a of its inputs, (N, in, places)."""

    weighs = True

    def forward(self, value: Tensor) -> tuple[Tensor, Kept]:
        """Compute W a + b."""
        layer, (above, beside) = self.layer, self.layer.padding
        windows = functional.pad(value, (beside, beside, above, above))
        for dim in (0, 1):
            windows = windows.unfold(2 + dim, layer.kernel_size[dim], layer.stride[dim])
        own = Kept(value.shape)
        own.places = windows.shape[2:4]
        own.entered = windows.permute(0, 1, 4, 5, 2, 3).flatten(4).flatten(1, 3)
        found = self._weight(len(value)).bmm(own.entered)
        if layer.bias is not None:
            found += layer.bias[:, None]
        return found.view(*found.shape[:2], *own.places), own

    def gradients(self, delta: Tensor, own: Kept, rows: int) -> list[Tensor]:
        """Compute z' a^T and the sums of z' over places, summed over each batch."""
        own.delta, found = delta.flatten(2), []
        for key in self.wanted:
            if key == "bias":
                each = own.delta.sum(dim=2)
            else:
                each = (own.delta @ own.entered.mT).view(-1, *self.layer.weight.shape)
            found.append(_split(each, rows).sum(dim=1))
        return found

    def back(self, delta: Tensor, own: Kept) -> Tensor:
        """Compute W^T z' and add up overlapping patches."""
        layer = self.layer
        # Rows and columns at the far edge that no stride has reached.
        left = [
            (own.shape[2 + dim] + 2 * layer.padding[dim] - layer.kernel_size[dim])
            % layer.stride[dim]
            for dim in (0, 1)
        ]
        return functional.conv_transpose2d(
            delta, layer.weight, None, layer.stride, layer.padding, left
        )

    def along(self, by: Tensor | None, own: Kept, given: Iterator[Tensor], rows: int) -> Tensor:
        """Differentiate z' a^T and W^T z' by z', and by a."""
        layer, size = self.layer, len(own.delta) // rows
        onward = torch.zeros_like(own.delta)
        if by is not None:
            onward = functional.conv2d(by, layer.weight, None, layer.stride, layer.padding)
            onward = onward.flatten(2)
        for key in self.wanted:
            slope = _repeated(next(given).reshape(rows, len(layer.weight), -1), size)
            if key == "bias":
                onward = onward + slope
            else:
                onward = torch.baddbmm(onward, slope, own.entered)
                own.by = slope.mT @ own.delta
        return onward.view(*onward.shape[:2], *own.places)

    def down(self, by: Tensor, own: Kept) -> Tensor:
        """Compute W^T by, add what came through the gradient, and add up patches."""
        layer, weight, by = self.layer, self._weight(len(by)).mT, by.flatten(2)
        found = weight.bmm(by) if own.by is None else torch.baddbmm(own.by, weight, by)
        return functional.fold(
            found, own.shape[2:], layer.kernel_size, padding=layer.padding, stride=layer.stride
        )

    def _weight(self, examples: int) -> Tensor:
        """The weight (N, out, in) for each example; a product that broadcasts is slower."""
        found: Tensor = self.layer.weight.flatten(1).expand(examples, -1, -1)
        return found


STEPS: dict[type[nn.Module], type[Step]] = {
    nn.Conv2d: Convolution,
    nn.Linear: Linear,
    nn.Sigmoid: Activation,
    nn.Tanh: Activation,
    nn.Flatten: Step,
}


def _split(values: Tensor, rows: int) -> Tensor:
    """Values (R B, ...) of examples by batch, (R, B, ...)."""
    return values.reshape(rows, -1, *values.shape[1:])


def _repeated(values: Tensor, size: int) -> Tensor:
    """Values (R, ...) of batches for each of their B examples, (R B, ...)."""
    return values[:, None].expand(-1, size, *values.shape[1:]).flatten(0, 1)
