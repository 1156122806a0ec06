"""The number of labels behind a head's gradient, and its columns in as many dimensions.

Each example, local step or label of a sequence adds a matrix of rank one to dW. So the rank of dW
is their number S if S < min(d, C) (Dang et al., Remarks 1 and 2).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.gradients import filled_sides, gap_ratios, numerical_rank, rank_above, rounding

Array = NDArray[np.float64]
Rank = Literal["gap", "tolerance", "oracle"]

SKETCH = 64
"""Dimensions of the first random sketch. The second has four times as many; then all are used."""

SUMS = 16
"""Sums of rows that a sketch mixes, as a multiple of its dimensions."""

LONGEST = 4
"""Longest rows that it mixes as well, as a multiple of its dimensions."""

BLOCK = 2**17
"""Entries that are converted to float64 at once: a megabyte, which fits the cache."""

FLAT = 0.1
"""Ratio of the smallest to the largest singular value above which a full rank is the labels'."""

FILLED = 0.99
"""Share of nonzero entries of an exact gradient, without rows and columns of zeros."""

PRECISE = 1e-6
"""Share of the largest singular value below which values are lost in a float64 Gram matrix."""


@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """The leading S dimensions of a gradient.

    Attributes:
        columns: U' dW, (S, C), a column for each class.
        values: Singular values of dW, largest first, as many as were computed.
        size: S, estimated or given. `columns` has fewer rows if fewer exceed rounding.
        signal: Number of rows that exceed noise.
        gap: Ratio of the S-th singular value to the next; infinite if the next is rounding.
        full: Whether all values exceed rounding, without rows and columns of zeros.
        coarse: Whether entries were dropped or rounded to few values.
    """

    columns: Array
    values: Array
    size: int
    signal: int
    gap: float
    full: bool
    coarse: bool

    @property
    def whitened(self) -> Array:
        """The right singular vectors Q (S, C)."""
        return self.columns / self.values[: len(self.columns), None]

    @property
    def length(self) -> float:
        """The Frobenius norm of the gradient."""
        return float(np.linalg.norm(self.values))

    @property
    def clean(self) -> bool:
        """Whether the other dimensions are small, as in an update that was not perturbed."""
        tail = self.values[len(self.columns) :]
        return not (self.full or self.coarse) and bool((tail < 1e-5 * self.values[0]).all())


def leading(
    weight: Tensor, mode: Rank, rng: torch.Generator, *, label_count: int | None, tolerance: float
) -> Subspace:
    """Compute the leading dimensions of a gradient.

    Args:
        weight: Gradient (C, d), float32 or float64.
        mode: Where S comes from: "gap": singular values above rounding and noise
            (`numerical_rank`); "tolerance": those above a share of the largest; "oracle":
            `label_count`.
        rng: Draws the random sketch, which is exact up to rounding if the rank is below its width.
        label_count: S, for "oracle".
        tolerance: The share, for "tolerance".
    """
    known = label_count if mode == "oracle" else None
    floor = rounding(weight)
    projected, values, vectors = _spectrum(weight, floor, rng, known)
    above = rank_above(values, absolute=floor)
    filled = int(weight.count_nonzero())
    sent = tuple(weight.shape) if filled == weight.numel() else filled_sides(weight)
    full = above >= min(sent)
    # An exact gradient has no zeros outside rows and columns of zeros.
    coarse = filled < FILLED * sent[0] * sent[1] or _few_values(weight)
    over = numerical_rank(values, sent, floor, noisy=coarse)
    # If all but a few rows were dropped, the rest may be the rows of the labels.
    alone = full and sent[0] < len(weight) and values[above - 1] > FLAT * values[0]
    if alone and not coarse:
        over = above
    # Columns of a softmax head's gradient add up to zero, so that C - 1 is the largest rank. At
    # that rank there may be more labels than directions; the largest fall separates theirs.
    if not (full or coarse) and above == len(weight) - 1:
        over = int(gap_ratios(values, floor)[:above].argmax()) + 1
    if known is not None:
        size = known
    elif mode == "tolerance":
        size = rank_above(values, relative=tolerance)
    else:
        size = over
    kept = max(1, min(size, above))
    following = values[kept] if kept < len(values) else 0.0
    return Subspace(
        columns=vectors[:, :kept].T @ projected.T,
        values=values,
        size=max(1, size),
        signal=max(1, min(kept, over)),
        gap=float(values[kept - 1] / following) if following > floor else float("inf"),
        full=full,
        coarse=coarse,
    )


def _spectrum(
    weight: Tensor, floor: float, rng: torch.Generator, known: int | None
) -> tuple[Array, Array, Array]:
    """Projected gradient (C, k), its singular values (k,) and right singular vectors (k, k)."""
    shortest = min(weight.shape)
    size = max(1, BLOCK // weight.shape[1])
    for width in (SKETCH, 4 * SKETCH):
        # The sketch must be wider than the rank; a wide one costs more than the whole matrix.
        if width > shortest / 2 or (known or 0) + 8 > width:
            continue
        basis = torch.linalg.qr(_sketch(weight, width, rng).double()).Q
        parts = [part.double() @ basis for part in torch.split(weight, size)]
        projected = torch.cat(parts).cpu().numpy()
        values, vectors = _eigen(projected, floor)
        if values[-1] <= floor:
            return projected, values, vectors
    whole = weight.double().cpu().numpy()
    if whole.shape[1] > whole.shape[0]:
        # In an orthonormal basis of the rows the matrix is smaller and its spectrum the same.
        whole = np.linalg.qr(whole.T)[1].T
    values, vectors = _eigen(whole, floor)
    return whole, values, vectors


def _sketch(weight: Tensor, width: int, rng: torch.Generator) -> Tensor:
    """Random sums (d, width) of a gradient's rows (C, d); they span these if the rank is lower.

    Of many rows those that follow each other are first added up with random signs, which takes one
    pass over the gradient. The longest rows, those of the labels, are mixed by themselves too: a
    sum of two of them would leave their difference to the short rows, and to rounding.
    """
    together = len(weight) // (SUMS * width)
    if together > 1:
        whole = len(weight) // together * together
        groups = weight[:whole].reshape(-1, together, weight.shape[1])
        signs = torch.randint(2, (len(groups), 1, together), generator=rng).to(weight) * 2 - 1
        longest = torch.linalg.vector_norm(weight, dim=1).topk(LONGEST * width).indices
        sums = torch.bmm(signs, groups).squeeze(1)
        weight = torch.cat([weight[longest], sums, weight[whole:]])
    mix = torch.randn(len(weight), width, generator=rng, dtype=weight.dtype)
    return weight.T @ mix.to(weight.device)


def _eigen(matrix: Array, floor: float) -> tuple[Array, Array]:
    """Singular values, largest first, and right singular vectors of (C, k)."""
    squares, vectors = np.linalg.eigh(matrix.T @ matrix)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    small = values[values > floor]
    if len(small) and small[-1] < PRECISE * values[0] and matrix.size <= 2**24:
        _, values, right = np.linalg.svd(np.linalg.qr(matrix)[1])
        return values, right.T
    return values, vectors[:, ::-1]


def _few_values(weight: Tensor) -> bool:
    """Whether entries were rounded to few values; an exact row hardly repeats a value."""
    rows = torch.linalg.vector_norm(weight, dim=1)
    longest = weight[rows.topk(min(8, len(rows))).indices]
    values = [row[row != 0].abs() for row in longest]
    total = sum(len(row) for row in values)
    return sum(len(row.unique()) for row in values) < FILLED / 2 * total
