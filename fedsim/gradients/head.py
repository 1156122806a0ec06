"""The gradient of the projection layer, found by name."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedsim.victim import VictimModel


class HeadGradient:
    """The gradient of the projection layer: weight (classes, features), bias (classes,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def class_sums(self) -> Tensor:
        """g_i of LLG (Wainakh et al., Eq. 3): row sums of the weight's gradient, (classes,)."""
        return self.weight.sum(dim=1)


def head_gradient(gradient: Mapping[str, Tensor], head: str, classes: int) -> HeadGradient:
    """Find the head's gradient, with classes along the first dimension.

    Args:
        gradient: Gradients by parameter name.
        head: Name of the projection layer.
        classes: Number of classes; a weight (features, classes) is transposed.

    Returns:
        The gradients of weight and bias.

    Raises:
        ValueError: There is no gradient of that name (the message lists candidates), it is no
            matrix with a side of `classes`, holds integers, NaN or Inf, or is zero.
    """
    weight = gradient.get(f"{head}.weight")
    if weight is None:
        candidates = sorted(
            name.removesuffix(".weight")
            for name, value in gradient.items()
            if value.ndim == 2 and classes in value.shape
        )
        raise ValueError(
            f"no gradient for the head '{head}.weight'; layers that could be the head: "
            f"{', '.join(candidates) or 'none'}"
        )
    if weight.ndim != 2 or classes not in weight.shape:
        raise ValueError(
            f"the head '{head}.weight' has shape {tuple(weight.shape)}, expected a matrix with "
            f"a side of {classes} classes"
        )
    if not weight.is_floating_point():
        kind = str(weight.dtype).removeprefix("torch.")
        raise ValueError(
            f"the gradient of the head '{head}.weight' is {kind}, "
            "expected floating point: put quantised values back to their scale"
        )
    least, largest = (float(bound) for bound in weight.aminmax())
    if not (math.isfinite(least) and math.isfinite(largest)):
        raise ValueError(f"the gradient of the head '{head}.weight' holds NaN or Inf")
    if least == largest == 0:
        raise ValueError(
            f"the gradient of the head '{head}.weight' is zero throughout: the client sent "
            "nothing, or a defense removed it"
        )
    if weight.shape[0] != classes:
        weight = weight.T
    return HeadGradient(weight, gradient.get(f"{head}.bias"))


@contextmanager
def head_calls(model: VictimModel) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Record the input and output of the head at each of its calls."""
    calls: list[tuple[Tensor, Tensor]] = []

    def keep(_: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((inputs[0], output))

    handle = model.module.get_submodule(model.head).register_forward_hook(keep)
    try:
        yield calls
    finally:
        handle.remove()
