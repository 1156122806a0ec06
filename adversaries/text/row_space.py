"""The space that a layer's gradient leaves for what entered the layer.

A weight W that is used b times, on x_1 to x_b, has the gradient sum_i delta_i x_i', so that each
x_i lies in its row space, of b dimensions where b is less than x_i has values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.gradients import noise_threshold, rank_above

__all__ = ["Span", "spanned"]

LOST = 1.5e-7
"""Singular values below this share of the largest are rounding: a client's own reaches 5e-8."""

FLAT = 0.1
"""Smallest singular value over the median, from which on what fills a gradient is noise."""

EVEN = 0.8
"""A singular value over the one before it, from which on both lie on one level."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The row space of a gradient. basis (n, r) float64, orthonormal.

    noisy: whether noise fills the rest, above which r directions stand out.
    """

    layers: tuple[str, ...]
    basis: Tensor
    noisy: bool

    @property
    def rank(self) -> int:
        """r, the inputs behind it."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """n, what it could span at most: values of an input of the layers."""
        return self.basis.shape[0]

    def off(self, inputs: Tensor) -> Tensor:
        """Distances (...) of inputs (..., n) from the span, as shares of their norms."""
        basis = self.basis.to(inputs)
        apart = inputs - (inputs @ basis) @ basis.mT
        tiny = torch.finfo(inputs.dtype).tiny
        share: Tensor = apart.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=tiny)
        return share


def spanned(
    layers: Sequence[str], gradient: Mapping[str, Tensor], turned: bool, *, rank: int | None = None
) -> Span | None:
    """The row space of what layers with the same input have of a gradient; None where it is all.

    turned: weights are (in, out). rank: directions there are, if that is known. Else values above
    rounding count; where noise fills the gradient (the rounding of weights that a gradient was read
    off, too: its level lies anywhere), those above the optimal threshold for white noise (Gavish
    and Donoho, 2014). Raises `ValueError` for a gradient that holds NaN or is zero.
    """
    weights = [gradient[f"{name}.weight"].double() for name in layers]
    rows = torch.cat([one.mT if turned else one for one in weights])
    if not torch.isfinite(rows).all():
        raise ValueError(f"the gradient of '{layers[0]}' holds NaN or Inf")
    if not rows.any():
        raise ValueError(
            f"the gradient of '{layers[0]}' is zero throughout: nothing was learned, or a defense "
            "removed it"
        )
    # The small directions count: neither a Gram matrix nor a sketch would keep them.
    factor = torch.linalg.qr(rows, mode="r").R if len(rows) > rows.shape[1] else rows
    _, values, right = torch.linalg.svd(factor, full_matrices=False)
    if rank is not None:
        return Span(tuple(layers), right[:rank].mT.contiguous(), noisy=False)
    rank, most = rank_above(values, relative=LOST), rows.shape[1]
    full = rank >= min(most - 1, len(rows))
    even = not full and bool(values[rank] > EVEN * values[rank - 1])
    flat = len(values) > 8 and bool(values[-1] > FLAT * values.median())
    noisy = flat and (full or even)
    if noisy or full:
        rank = _above_noise(values, rows.shape) if noisy else most
        if rank >= most // 2:
            return None
    return Span(tuple(layers), right[:rank].mT.contiguous(), noisy)


def _above_noise(values: Tensor, shape: Sequence[int]) -> int:
    """How many singular values (k,) exceed those of white noise; the rest may be as many again."""
    rank = 0
    for _ in range(4):
        threshold = noise_threshold([side - rank for side in shape])
        found = rank_above(values, absolute=threshold * float(values[rank:].median()))
        if found in (rank, len(values)):
            break
        rank = found
    return rank
