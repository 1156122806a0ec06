"""Whether inputs that an attack computed explain the observed gradient."""

from collections.abc import Mapping
from math import isnan

from torch import Tensor

from fedsim import VictimModel


def in_float64(model: VictimModel) -> VictimModel:
    """A copy in float64 and evaluation mode."""
    found = model.copy()
    found.module.double().eval()
    return found


def mismatch(
    model: VictimModel, inputs: Tensor, labels: Tensor, gradient: Mapping[str, Tensor]
) -> float:
    """The largest relative error of a parameter's gradient at a batch; infinite for NaN or Inf."""
    if not inputs.isfinite().all():
        return float("inf")
    return largest_error(model.gradient(inputs, labels), gradient)


def largest_error(ours: Mapping[str, Tensor], gradient: Mapping[str, Tensor]) -> float:
    """The largest relative error of a parameter's gradient; infinite for NaN or Inf."""
    errors = [
        float((ours[name].detach() - theirs).norm() / theirs.norm().clamp(min=1e-30))
        for name, theirs in gradient.items()
        if name in ours
    ]
    return float("inf") if any(map(isnan, errors)) else max(errors, default=float("inf"))
