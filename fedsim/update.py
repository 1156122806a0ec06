"""What one client sends to the server in one round, and what of it the server refuses."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import UpdateRefused

Kind = Literal["gradient", "delta", "weights"]
Reduction = Literal["example", "token", "sequence"]

LARGEST = 1e15
"""Largest absolute value in an update: larger squares overflow, and no honest client sends one."""

FAST = (torch.float32, torch.float64)
"""The types of values that numpy sums up as fast as torch."""

MOST = 1_000_000
"""Largest number of examples or local steps of one update: attacks allocate memory for each."""


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """What one client sends to the server in one round.

    Attributes:
        tensors: Gradient of the loss, delta (after - before) or new weights, by parameter name.
        kind: Which of these three the tensors are.
        buffers: Floating-point buffers after local training (running statistics), by name.
        optimizer: Local optimizer: "sgd", another name, or "unknown".
        lr: Its learning rate; None if not known. `momentum`, `weight_decay`: as in torch.optim.
        steps: Number of local steps.
        num_examples: Number of examples in all steps, repeated ones counted each time.
        reduction: What the training loss is a mean over.
    """

    tensors: Mapping[str, Tensor]
    kind: Kind
    buffers: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: str = "sgd"
    lr: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    steps: int = 1
    num_examples: int = 1
    reduction: Reduction = "example"

    def replace(self, **changes: Any) -> "Update":
        """Return a copy with some fields changed, as a defense does."""
        return dataclasses.replace(self, **changes)

    def check(self, before: Mapping[str, Tensor]) -> None:
        """Refuse a hostile or broken update.

        Args:
            before: Global arrays that the client received; names and shapes must agree with them.

        Raises:
            UpdateRefused: A tensor is missing, extra, wrongly shaped, not floating point, or holds
                NaN, Inf or values beyond 1e15; or counts or settings are out of range.
        """
        found = {**self.tensors, **self.buffers}
        if found.keys() != before.keys():
            if missing := sorted(before.keys() - found.keys()):
                raise UpdateRefused(f"tensors are missing: {_few(missing)}; expected {len(before)}")
            extra = sorted(found.keys() - before.keys())
            raise UpdateRefused(f"tensors that were not asked for: {_few(extra)}")
        for name, tensor in found.items():
            agrees = tensor.shape == before[name].shape
            if agrees and _bounded(tensor):
                continue
            if not agrees:
                raise UpdateRefused(
                    f"'{name}' has shape {tuple(tensor.shape)}, expected "
                    f"{tuple(before[name].shape)}"
                )
            if not tensor.is_floating_point():
                raise UpdateRefused(f"'{name}' holds {tensor.dtype}, expected floating point")
            if not torch.isfinite(tensor).all():
                bad = int((~torch.isfinite(tensor)).sum())
                raise UpdateRefused(f"'{name}' holds {bad} NaN or Inf of {tensor.numel()} values")
            raise UpdateRefused(
                f"'{name}' holds {float(tensor.abs().max()):.1e}; beyond {LARGEST:.0e} "
                "no honest update goes"
            )
        if not (1 <= self.steps <= MOST and 1 <= self.num_examples <= MOST):
            raise UpdateRefused(
                f"{self.num_examples} examples in {self.steps} steps; expected 1 to {MOST} of each"
            )
        settings = (0.0 if self.lr is None else self.lr, self.momentum, self.weight_decay)
        if not all(0 <= value < LARGEST for value in settings) or self.momentum >= 1:
            raise UpdateRefused(
                f"lr {self.lr}, momentum {self.momentum}, weight decay {self.weight_decay}; "
                f"expected 0 or more, below {LARGEST:.0e}, and a momentum below 1"
            )
        if self.lr == 0:
            raise UpdateRefused("lr 0: nothing was trained")


def _bounded(tensor: Tensor) -> bool:
    """Whether all values are floating point and within `LARGEST`."""
    if tensor.dtype in FAST and tensor.is_cpu:
        # No value is beyond the root of the sum of squares, which takes a quarter of the time. Of
        # small tensors numpy finds it in half of torch's time.
        values = (tensor.detach() if tensor.requires_grad else tensor).numpy()
        if np.vdot(values, values) <= LARGEST:  # False for NaN
            return True
    if not tensor.is_floating_point():
        return False
    if not tensor.numel():
        return True
    least, most = tensor.aminmax()  # torch's largest norm takes 20 times as long
    return bool(float(least) >= -LARGEST and float(most) <= LARGEST)  # False for NaN


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name)[:60] for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
