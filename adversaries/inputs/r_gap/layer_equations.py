"""The linear equations of one layer for its inputs, and how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import fold, unfold

from adversaries.inputs.layer_chain import Link
from adversaries.inputs.r_gap.least_squares import Product, least_squares

DOUBTFUL = 1e-4
"""Outputs below this share of their mean may have the wrong sign."""

ERRORS = 10.0
"""A ReLU fires for sure above so many times the largest error that negative outputs show."""


@dataclass(frozen=True, slots=True)
class Count:
    """Unknowns and equations of a layer, of all examples together.

    Attributes:
        layer: The layer's name.
        unknowns: Values of its inputs.
        unseen: Those of them that no weight touches.
        outputs: Equations of its outputs, if all its units fire.
        gradient: Independent equations of its weight's gradient, at most.
    """

    layer: str
    unknowns: int
    unseen: int
    outputs: int
    gradient: int

    @property
    def short(self) -> bool:
        """Whether the equations cannot determine the inputs."""
        return bool(self.unseen) or self.outputs + self.gradient < self.unknowns

    def __str__(self) -> str:
        if self.unseen:
            return (
                f"the layer '{self.layer}' does not see {self.unseen:,} of its {self.unknowns:,} "
                "inputs"
            )
        return (
            f"the layer '{self.layer}' has {self.unknowns:,} unknown inputs, and at most "
            f"{self.outputs + self.gradient:,} equations ({self.outputs:,} of its outputs, "
            f"{self.gradient:,} of its weight's gradient)"
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """The inputs of a layer.

    Attributes:
        inputs: One example for each victim (V, n).
        errors: dZ (V, outputs).
        weights: What each equation of an output counted (V, outputs).
        missed: By what each equation was missed (V, equations).
    """

    inputs: Tensor
    errors: Tensor
    weights: Tensor
    missed: Tensor


class LayerEquations:
    """W U = Z - b and dZ U' = dW, linear in the patches U of a layer's inputs.

    A convolution multiplies its weight W (channels, C K) with the patches U (C K, Q) of its input,
    one of K values in each of C channels for each of Q places. Its gradient is dW = dZ U', where
    dZ is the gradient of the loss by the outputs Z (channels, Q) before the activation. A fully
    connected layer is a convolution with one place.

    Args:
        link: The layer.

    Raises:
        ValueError: The convolution's padding is not one of zeros, the same on both sides.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        weight = link.layer.weight.detach()
        self._groups = 1
        self._sides: tuple[int, ...] = (1, 1)
        self._places: dict[str, tuple[int, ...]] = {"kernel_size": (1, 1)}
        if isinstance(link.layer, nn.Conv2d):
            self._groups, self._sides = link.layer.groups, link.inputs[1:]
            self._places = _places(link.name, link.layer)
        self._weight = weight.reshape(self._groups, len(weight) // self._groups, -1)
        self._channels = prod(link.inputs) // prod(self._sides)
        bias = link.layer.bias
        self._bias = torch.zeros(len(weight)).to(weight) if bias is None else bias.detach()

    def forward(self, inputs: Tensor) -> Tensor:
        """Z (V, outputs) of inputs (V, n)."""
        return self._product(self._patches(inputs)) + self._biases()

    def backward(self, errors: Tensor) -> Tensor:
        """The gradient of the loss by the inputs (V, n), given dZ (V, outputs)."""
        return self._folded(self._weight.transpose(1, 2) @ self._grouped(errors))

    def solve(
        self, outputs: Tensor, upstream: Tensor, gradient: Tensor, accuracy: float, iterations: int
    ) -> "Solution":
        """Find the inputs of one example for each victim.

        Equations of outputs count in proportion to the activation's slope, because errors of the
        recovered outputs grow with its inverse; a ReLU that does not fire gives none. Where an
        output may have the wrong sign, and with it the wrong slope, the layer is first solved
        without its channel's gradient, and the solution shows the sign.

        Args:
            outputs: The outputs behind the activation (V, outputs).
            upstream: The gradient of the loss by these (V, outputs).
            gradient: dW (V, *weight.shape).
            accuracy: As for `least_squares`.
            iterations: As for `least_squares`.

        Raises:
            ValueError: Too few units of the layer have a gradient.
        """
        behind = self.link.behind
        if behind.inverse is None:
            before = torch.where(outputs > _error(outputs), outputs, 0.0)
        else:
            before = behind.inverse(outputs)
        slope = behind.slope(before)
        self._refuse_if_short(slope * upstream)
        if behind.kinked:
            doubtful = self._doubtful(outputs)
            left_out = self._channels_with(doubtful)
            if (some := doubtful.any(dim=1) & ~left_out.all(dim=1)).any():
                slope[some] = torch.where(doubtful, 0.0, slope)[some]
                kept = ~left_out[some]
                errors, wanted = slope[some] * upstream[some] * kept, gradient[some]
                first = self._solved(
                    before[some], errors, slope[some], wanted, kept, accuracy, iterations
                )
                read = behind.slope(self.forward(first.inputs))
                slope[some] = torch.where(doubtful[some], read, slope[some])
        return self._solved(
            before, slope * upstream, slope, gradient, torch.ones_like(slope), accuracy, iterations
        )

    def _solved(
        self,
        before: Tensor,
        errors: Tensor,
        slope: Tensor,
        gradient: Tensor,
        kept: Tensor,
        accuracy: float,
        iterations: int,
    ) -> "Solution":
        """Solve the equations of known outputs before the activation, and known dZ.

        `kept` (V, outputs) is zero for outputs whose channel's gradient is left out.
        """
        weights = slope / slope.amax(dim=1, keepdim=True)
        product, transposed, scale = self._equations(errors, weights)
        channels = self._grouped(kept)[..., :1]
        sums = gradient.view(len(gradient), *self._weight.shape) * channels * scale[..., None, None]
        right = torch.cat([weights * (before - self._biases()), sums.flatten(1)], dim=1)
        found = least_squares(product, transposed, right, accuracy=accuracy, iterations=iterations)
        return Solution(found, errors, weights, right - product(found))

    def _doubtful(self, outputs: Tensor) -> Tensor:
        """Outputs (V, outputs) so close to zero that errors may have changed their sign."""
        level = DOUBTFUL * outputs.abs().mean(dim=1, keepdim=True)
        if self.link.behind.inverse is not None:
            return outputs.abs() < level
        error = _error(outputs)
        return (outputs > error) & (outputs < torch.maximum(level, ERRORS * error))

    def _channels_with(self, chosen: Tensor) -> Tensor:
        """All outputs of the channels that have a chosen one (V, outputs)."""
        channels = self._grouped(chosen).any(dim=3, keepdim=True)
        return channels.expand(*self._grouped(chosen).shape).flatten(1)

    def _refuse_if_short(self, errors: Tensor) -> None:
        """Refuse victims of which too few units have a gradient, such as ReLUs that fire."""
        firing = int((errors != 0).sum(dim=1).min())
        if not firing:
            raise ValueError(f"no unit of the layer '{self.link.name}' has a gradient")
        if firing < errors.shape[1] and (left := replace(self._once, outputs=firing)).short:
            raise ValueError(f"{left}: {firing:,} of its {errors.shape[1]:,} units fire")

    def expected_error(
        self,
        solution: "Solution",
        rngs: Sequence[torch.Generator],
        accuracy: float,
        iterations: int,
    ) -> list[float]:
        """How well the equations of a solution recover other inputs.

        A random input's equations are solved, with errors as large as those of the solution.

        Args:
            solution: The solution.
            rngs: Each victim's own generator, which draws its random input.
            accuracy: As for `least_squares`.
            iterations: As for `least_squares`.

        Returns:
            The relative error of each victim's random input; near one if a part of the inputs does
            not enter the equations.
        """
        product, transposed, _ = self._equations(solution.errors, solution.weights)
        size, exact = solution.inputs.shape[1], torch.float64
        probe = torch.stack([torch.rand(size, generator=one, dtype=exact) for one in rngs])
        size = solution.missed.shape[1]
        noise = torch.stack([torch.randn(size, generator=one, dtype=exact) for one in rngs])
        probe, noise = probe.to(solution.inputs), noise.to(solution.inputs)
        right = product(probe) + solution.missed.abs() * noise
        found = least_squares(product, transposed, right, accuracy=accuracy, iterations=iterations)
        errors: list[float] = ((found - probe).norm(dim=1) / probe.norm(dim=1)).tolist()
        return errors

    @cached_property
    def _once(self) -> Count:
        """The count for one example."""
        return self.count(1)

    def count(self, examples: int) -> Count:
        """Unknowns and equations for a number of examples.

        A stride divides the places of an input into classes, each seen by some of the kernel's
        places alone; a class has no more independent equations of the gradient than unknowns.
        """
        height, width = self._sides
        numbers = torch.arange(1, height * width + 1, dtype=torch.float64)
        seen = unfold(numbers.view(1, 1, height, width), **self._places)[0].long()  # (K, Q)
        classes = list[tuple[set[int], int]]()
        for row in seen.tolist():
            places = {*row} - {0}
            touching = [one for one in classes if one[0] & places]
            classes = [one for one in classes if one not in touching]
            union = places.union(*(one[0] for one in touching))
            classes.append((union, 1 + sum(one[1] for one in touching)))
        units = self._weight.shape[1]
        rank = sum(min(examples * len(places), units * rows) for places, rows in classes)
        touched = sum(len(places) for places, _ in classes)
        return Count(
            self.link.name,
            examples * prod(self.link.inputs),
            examples * self._channels * (height * width - touched),
            examples * prod(self.link.outputs),
            self._channels * rank,
        )

    def _equations(self, errors: Tensor, weights: Tensor) -> tuple[Product, Product, Tensor]:
        """Both sets of equations as a linear map of the inputs.

        Args:
            errors: dZ (V, outputs).
            weights: What each equation of an output counts (V, outputs).

        Returns:
            The map to the equations (V, outputs + weights), its transpose, and the factor of the
            equations of the gradient (V, 1), which makes the largest dZ one.
        """
        scale = 1 / errors.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
        scaled, split = self._grouped(errors * scale), errors.shape[1]

        def product(inputs: Tensor) -> Tensor:
            patches = self._patches(inputs)
            gradient = (scaled @ patches.transpose(2, 3)).flatten(1)
            return torch.cat([weights * self._product(patches), gradient], dim=1)

        def transposed(rest: Tensor) -> Tensor:
            ours = self._grouped(weights * rest[:, :split])
            gradient = rest[:, split:].view(len(rest), *self._weight.shape)
            found = self._weight.transpose(1, 2) @ ours + gradient.transpose(2, 3) @ scaled
            return self._folded(found)

        return product, transposed, scale

    def _patches(self, inputs: Tensor) -> Tensor:
        """U (V, groups, C K / groups, Q)."""
        images = inputs.view(len(inputs), self._channels, *self._sides)
        found = unfold(images, **self._places)
        return found.view(len(inputs), self._groups, -1, found.shape[-1])

    def _folded(self, patches: Tensor) -> Tensor:
        """The transpose of `_patches`, to (V, n)."""
        flat = patches.reshape(len(patches), -1, patches.shape[-1])
        found: Tensor = fold(flat, self._sides, **self._places)
        return found.flatten(1)

    def _product(self, patches: Tensor) -> Tensor:
        """W U, (V, outputs)."""
        return (self._weight @ patches).flatten(1)

    def _grouped(self, outputs: Tensor) -> Tensor:
        """Outputs (V, outputs) as (V, groups, channels / groups, Q)."""
        return outputs.view(len(outputs), *self._weight.shape[:2], -1)

    def _biases(self) -> Tensor:
        """The bias of each output, (outputs,)."""
        return self._bias.repeat_interleave(prod(self.link.outputs) // len(self._bias))


def _error(outputs: Tensor) -> Tensor:
    """The largest error of each victim's outputs of ReLU (V, 1), as negative ones show it."""
    return (-outputs).clamp(min=0).amax(dim=1, keepdim=True)


def _places(name: str, layer: nn.Conv2d) -> dict[str, tuple[int, ...]]:
    """Where a convolution's kernel lies, as `unfold` takes it."""
    padding = layer.padding
    if isinstance(padding, str):
        both = tuple(layer._reversed_padding_repeated_twice)
        padding = (both[2], both[0])
        if both != (both[1], both[1], both[3], both[3]):
            raise ValueError(f"the padding of '{name}' is not the same on both sides")
    if layer.padding_mode != "zeros" and any(padding):
        raise ValueError(f"the padding of '{name}' is {layer.padding_mode}, and not zeros")
    return {
        "kernel_size": layer.kernel_size,
        "dilation": layer.dilation,
        "padding": tuple(padding),
        "stride": layer.stride,
    }
