"""Row spaces of gradients: what lies in them, and how far rounding of sent weights moves it.

A weight that is applied to b inputs x_1 to x_b of d values has the gradient sum_i delta_i x_i'. So
each x_i lies in its row space, which has b dimensions if b < d.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fedsim.gradients import filled_sides, numerical_rank, rank_above, rounding

FLAT = 0.1
"""Ratio of the smallest to the median singular value above which the values are noise."""

SAFE = 3.0
"""Factor by which rounding of sent weights may move an input further than it does on average. It
also covers part of the inputs' components along directions that rounding hides."""


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The row space of a gradient.

    Attributes:
        layers: The layers whose gradients it is of.
        basis: Orthonormal basis, (n, r) float64.
        noisy: Whether noise fills the other directions of the gradient.
        blur: Lengths by which the rounding of sent weights may turn the directions out of the row
            space, (r,) float64; None if no weights were sent, or if noise exceeds it.
    """

    layers: tuple[str, ...]
    basis: Tensor
    noisy: bool
    blur: Tensor | None = None

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
        return cast(Tensor, apart.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=tiny))

    def blurred(self, inputs: Tensor) -> Tensor:
        """Distances (...) by which `blur` may move inputs (..., n), relative to their norms."""
        if self.blur is None:
            return inputs.new_zeros(inputs.shape[:-1])
        moved = inputs @ (self.basis * self.blur).to(inputs)
        tiny = torch.finfo(inputs.dtype).tiny
        return cast(Tensor, moved.norm(dim=-1) / inputs.norm(dim=-1).clamp(min=tiny))


def spanned(
    layers: Sequence[str],
    gradient: Mapping[str, Tensor],
    turned: bool,
    *,
    errors: Mapping[str, Tensor] | None = None,
    rank: int | None = None,
) -> Span | None:
    """The row space of the gradient of layers with the same input.

    `numerical_rank` decides its dimension.

    Args:
        layers: Names of the layers.
        gradient: Gradients by parameter name.
        turned: Whether weights are (in, out) instead of (out, in).
        errors: Root mean square errors of the gradients' entries by parameter name, which rounding
            of sent weights left (`weight_rounding`); empty if no weights were sent.
        rank: The rank, if it is known.

    Returns:
        None if the row space has all dimensions.

    Raises:
        ValueError: The gradient holds NaN or Inf, or is zero.
    """
    rows = _rows(layers, gradient, turned)
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
    longest = 0.0
    if errors:
        off = _rows(layers, errors, turned)
        # The bound of `rounding` on singular values.
        longest = float(off.norm(dim=1).max())
        level += longest + float(off.norm(dim=0).max())
    above = rank_above(values, absolute=level)
    full = above >= min(most - 1, len(rows))
    rank = numerical_rank(values, filled_sides(rows), level, noisy=full)
    noisy = rank < above and len(values) > 8 and bool(values[-1] > FLAT * values.median())
    if (full and not noisy) or (noisy and rank >= most // 2):
        return None
    # A direction is the sum of the gradient's rows, with weights of norm 1 / its singular value.
    blur = SAFE * longest / values[:rank] if errors and not noisy else None
    return Span(tuple(layers), right[:rank].mT.contiguous(), noisy, blur)


def _rows(layers: Sequence[str], values: Mapping[str, Tensor], turned: bool) -> Tensor:
    """The values of the layers' weights, (outputs of all layers, inputs) float64."""
    weights = [values[f"{name}.weight"].double() for name in layers]
    return torch.cat([one.mT if turned else one for one in weights])
