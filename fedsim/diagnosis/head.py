"""Measurements of the gradient of the head, which shows labels, noise and compression."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.quantity import Value
from fedsim.records import Update

SPARSE = 0.15
"""Share of zeros in the head's gradient from which on it shows no noise."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What the gradient of a linear layer shows.

    Attributes:
        rank: Its numerical rank.
        most: The largest rank that it can have: its smaller side, of the head at most classes - 1.
        snr: Energy of the singular values that count over that of the others, which are taken for
            noise; None where all count, infinite where the others are zero.
        values: Its singular values (smaller side,), the largest first; None if not computed.
    """

    rank: int
    most: int
    snr: float | None
    values: Tensor | None = None

    @property
    def fill(self) -> float:
        """The rank, relative to the largest."""
        return self.rank / self.most if self.most else 0.0


def head_values(
    gradient: Mapping[str, Tensor],
    name: str,
    update: Update,
    layer: Layer | None,
    usual: Tensor | None,
) -> dict[str, Value]:
    """Measure the head's gradient.

    Args:
        gradient: The gradient of all parameters by name.
        name: The head's layer.
        update: The update that it is of.
        layer: The rank of the head's gradient and the largest that it can have, if it is known.
        usual: Mean probability of each class for random inputs (classes,), if it is known.
    """
    head, bias = gradient[f"{name}.weight"], gradient.get(f"{name}.bias")
    examples, classes = update.num_examples, head.shape[0]
    zeros = zeros_in(head)
    # The sums stay zero in no other steps, and not where coordinates were left out.
    whole = update.optimizer in ("sgd", "unknown") and (zeros or 0) < SPARSE
    imbalance = _imbalance(head) if whole else None
    sums = head.double().sum(dim=1)
    negative = int(((sums if bias is None else bias) < 0).sum())
    rank = layer.rank if layer else None
    most = min(examples, rank + 1, classes) if rank is not None else None
    labels = _labels(bias, usual, examples, most)
    full = layer is not None and layer.rank >= layer.most
    return {
        "imbalance": imbalance,
        "noise": _noise(imbalance, head, gradient),
        "row_noise": _row_noise(imbalance, head),
        "zeros": zeros,
        "coarseness": _coarseness(head),
        "opposite_signs": _opposite_signs(sums, bias),
        "unmarked": max(0.0, 1 - negative / examples),
        "head_rank": rank,
        "head_fill": layer.fill if layer and examples > 1 else None,
        "label_share": labels / classes if labels is not None else None,
        "absent": (1 - labels / classes if full else 0.0) if labels is not None else None,
        "guessable": 1 - (1 - 1 / classes) ** examples,
    }


def _labels(
    bias: Tensor | None, usual: Tensor | None, examples: int, most: int | None
) -> int | None:
    """Number of classes with labels: the gradient of the bias is the mean of p - y."""
    if bias is None or usual is None or bias.shape != usual.shape:
        return most
    counts = examples * (usual - bias.double())
    return max(1, min(examples, int((counts > 0.5).sum())))


def norm(tensors: Mapping[str, Tensor]) -> float:
    """Norm of tensors joined."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in tensors.values()))


def _imbalance(head: Tensor) -> float | None:
    norm = float(head.double().norm())
    return float(head.double().sum(dim=0).norm()) / norm if norm else None


def _noise(imbalance: float | None, head: Tensor, gradient: Mapping[str, Tensor]) -> float | None:
    """Norm of noise of the head's strength at every parameter, over that of the gradient."""
    whole = norm(gradient)
    if imbalance is None or not whole:
        return None
    entry = imbalance * float(head.double().norm()) / math.sqrt(head.numel())
    return entry * math.sqrt(sum(one.numel() for one in gradient.values())) / whole


def _filled(head: Tensor) -> Tensor:
    """The rows and columns of a matrix that are not zero throughout."""
    return head[head.any(dim=1)][:, head.any(dim=0)]


def _row_noise(imbalance: float | None, head: Tensor) -> float | None:
    """What noise of the imbalance's strength adds to a row sum, over the most negative one."""
    signal = -float(head.double().sum(dim=1).min())
    if imbalance is None or signal <= 0:
        return None
    return imbalance * float(head.double().norm()) / math.sqrt(head.shape[0]) / signal


def zeros_in(head: Tensor) -> float | None:
    """Share of zeros in a matrix, in rows and columns that are not zero throughout."""
    filled = _filled(head)
    return float((filled == 0).double().mean()) if filled.numel() else None


def _coarseness(head: Tensor) -> float | None:
    values = head[head != 0].abs()
    return 1 - len(torch.unique(values)) / len(values) if len(values) else None


def _opposite_signs(sums: Tensor, bias: Tensor | None) -> float | None:
    """Share of the bias gradient at classes whose weights have a row sum of the other sign."""
    if bias is None or bias.shape != sums.shape or not bias.any():
        return None
    weights = bias.double().abs()
    return float(weights[sums * bias.double() < 0].sum() / weights.sum())
