"""The row space of a layer's gradient, which contains the layer's inputs.

A weight that is applied to b inputs x_1 to x_b of d values has the gradient sum_i delta_i x_i'. So
each x_i lies in its row space, which has b dimensions if b < d.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.gradients import filled_sides, numerical_rank, rank_above, rounding

FLAT = 0.1
"""Ratio of the smallest to the median singular value above which the values are noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The row space of a gradient.

    Attributes:
        layers: The layers whose gradients it is of.
        basis: Orthonormal basis, (n, r) float64.
        noisy: Whether noise fills the other directions of the gradient.
    """

    layers: tuple[str, ...]
    basis: Tensor
    noisy: bool

    @property
    def rank(self) -> int:
        """Number r of dimensions, that of the layers' inputs."""
        return self.basis.shape[1]

    @property
    def width(self) -> int:
        """Number n of values of an input of the layers."""
        return self.basis.shape[0]

    def off(self, inputs: Tensor) -> Tensor:
        """Distances (...) of inputs (..., n) from the row space, relative to their norms."""
        basis = self.basis.to(inputs)
        apart = inputs - (inputs @ basis) @ basis.mT
        tiny = torch.finfo(inputs.dtype).tiny
        share: Tensor = apart.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=tiny)
        return share


def spanned(
    layers: Sequence[str], gradient: Mapping[str, Tensor], turned: bool, *, rank: int | None = None
) -> Span | None:
    """The row space of the gradient of layers with the same input.

    `numerical_rank` decides its dimension.

    Args:
        layers: Names of the layers.
        gradient: Gradients by parameter name.
        turned: Whether weights are (in, out) instead of (out, in).
        rank: The rank, if it is known.

    Returns:
        None if the row space has all dimensions.

    Raises:
        ValueError: The gradient holds NaN or Inf, or is zero.
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
    # Small singular values matter; a Gram matrix or a sketch would lose them.
    factor = torch.linalg.qr(rows, mode="r").R if len(rows) > rows.shape[1] else rows
    _, values, right = torch.linalg.svd(factor, full_matrices=False)
    if rank is not None:
        return Span(tuple(layers), right[:rank].mT.contiguous(), noisy=False)
    most, level = rows.shape[1], rounding(rows)
    above = rank_above(values, absolute=level)
    full = above >= min(most - 1, len(rows))
    rank = numerical_rank(values, filled_sides(rows), level, noisy=full)
    noisy = rank < above and len(values) > 8 and bool(values[-1] > FLAT * values.median())
    if (full and not noisy) or (noisy and rank >= most // 2):
        return None
    return Span(tuple(layers), right[:rank].mT.contiguous(), noisy)
