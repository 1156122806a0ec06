"""From whatever a client sent to the gradient of its loss, settled once for every adversary.

Sign and scale: an adversary always sees the gradient of the loss (uphill), mean over examples. A
delta has the opposite sign and a factor lr x steps; half of this field's bugs live there.
"""

from collections.abc import Mapping

from torch import Tensor

from fedsim.records import Update

__all__ = ["to_gradient"]


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
