"""From whatever a client sent to the gradient of its loss, settled once for every adversary.

Sign and scale: an adversary always sees the gradient of the loss (uphill), mean over examples. A
delta has the opposite sign and a factor lr x steps; half of this field's bugs live there.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from fedsim.records import Update

__all__ = ["HeadGradient", "head_gradient", "squared_distance", "to_gradient"]


def to_gradient(
    update: Update,
    before: Mapping[str, Tensor],
    *,
    lr: float | None = None,
    steps: int | None = None,
) -> tuple[dict[str, Tensor], bool]:
    """The gradient behind an update, by parameter name, and whether it is exact.

    before: the weights the client started from, needed for kind "weights" and for weight decay.
    lr, steps: what the observer knows of the local optimizer; None where it does not. Without lr
    the gradient comes up to a positive factor; without steps a single one is assumed.

    For one plain SGD step w' = w - lr (g + decay w) the gradient is recovered exactly (up to
    float32 cancellation in w' - w). For K steps, and for momentum m, the sum of the steps is
    divided by the weight that SGD gives them, sum_k (1 - m^(K - k)) / (1 - m): the average
    gradient along the local path, exact only if it did not turn. Any optimizer other than SGD is
    treated alike and never exact.
    """
    if update.kind == "gradient":
        return {name: value.detach().clone() for name, value in update.tensors.items()}, True
    if update.kind == "weights":
        delta = {name: value - before[name] for name, value in update.tensors.items()}
    else:
        delta = dict(update.tensors)
    weight = _step_weight(steps or 1, update.momentum) * (lr if lr is not None else 1.0)
    gradient = {name: value.detach() / -weight for name, value in delta.items()}
    if update.weight_decay and lr is not None:
        gradient = {k: g - update.weight_decay * before[k] for k, g in gradient.items()}
    exact = update.optimizer == "sgd" and lr is not None and steps == 1
    return gradient, exact


def _step_weight(steps: int, momentum: float) -> float:
    """How many times the mean gradient enters K steps of SGD with momentum, from a cold start."""
    if not momentum:
        return float(steps)
    return sum((1 - momentum ** (steps - k)) / (1 - momentum) for k in range(steps))


class HeadGradient:
    """The gradient of the projection layer: weight (classes, features), bias (classes,) or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias

    def class_sums(self) -> Tensor:
        """g_i of LLG (Wainakh et al., Eq. 3): row sums of the weight's gradient, (classes,)."""
        return self.weight.sum(dim=1)


def head_gradient(gradient: Mapping[str, Tensor], head: str, classes: int) -> HeadGradient:
    """The head's gradient out of all, with classes along the first dimension.

    A transposed weight (features, classes) is turned. Raises `ValueError` when the head is not
    there (the message lists the candidates), is no matrix with a side of `classes`, holds NaN or
    Inf, or is zero throughout: nothing can be read from such a gradient.
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
    if not torch.isfinite(weight).all():
        raise ValueError(f"the gradient of the head '{head}.weight' holds NaN or Inf")
    if not weight.any():
        raise ValueError(
            f"the gradient of the head '{head}.weight' is zero throughout: the client sent "
            "nothing, or a defense removed it"
        )
    if weight.shape[0] != classes:
        weight = weight.T
    return HeadGradient(weight, gradient.get(f"{head}.bias"))


def squared_distance(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], names: Iterable[str]
) -> Tensor:
    """Sum over the named parameters of ||g' - g||^2 (Zhu et al., DLG, Eq. 4); a sum, not a mean."""
    terms = [(ours[name] - theirs[name]).square().sum() for name in names]
    return torch.stack(terms).sum()
