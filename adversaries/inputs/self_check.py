"""Whether inputs that an attack computed explain the observed gradient."""

from collections.abc import Mapping
from math import isnan

from torch import Tensor

from fedsim import VictimModel

ZERO = 1e-6
"""Share of the largest parameter's norm below which a gradient is zero up to rounding."""


def in_float64(model: VictimModel) -> VictimModel:
    """A copy in float64, in the client's mode."""
    found = model.copy()
    found.module.double()
    return found


def mismatch(
    model: VictimModel, inputs: Tensor, labels: Tensor, gradient: Mapping[str, Tensor]
) -> float:
    """The largest relative error of a parameter's gradient at a batch; infinite for NaN or Inf.

    Raises:
        ValueError: The model or its loss does not compute in the type of the inputs.
    """
    if not inputs.isfinite().all():
        return float("inf")
    try:
        ours = model.gradient(inputs, labels)
    except RuntimeError as error:
        raise ValueError(
            f"the attack checks itself in {inputs.dtype}, in which the model or its loss does not "
            f"compute ({error}). Weights of classes that are buffers of the model change with it"
        ) from error
    return largest_error(ours, gradient)


def largest_error(ours: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> float:
    """The largest relative error of a parameter's gradient; infinite for NaN or Inf."""
    norms = [float(theirs.norm()) for name, theirs in gradient.items() if name in ours]
    least = max(1e-30, ZERO * max(norms, default=0.0))  # of what is zero but for rounding
    errors = [
        float((ours[name].detach() - theirs).norm() / theirs.norm().clamp(min=least))
        for name, theirs in gradient.items()
        if name in ours
    ]
    return float("inf") if any(map(isnan, errors)) else max(errors, default=float("inf"))
