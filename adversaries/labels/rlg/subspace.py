"""How many labels a head's gradient holds, and its columns in as many dimensions.

Examples, local steps and the labels of a sequence add a matrix of rank one each to dW; so its rank
is S, their number, as long as S < min(d, C) (Dang et al., Remarks 1 and 2).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.gradients import filled_sides, numerical_rank, rank_above, rounding

__all__ = ["Rank", "Subspace", "leading"]

Array = NDArray[np.float64]
Rank = Literal["gap", "tolerance", "oracle"]

SKETCH = 64
"""Dimensions of the first random sketch; the second has four times as many, the third is exact."""

BLOCK = 2**17
"""Entries that are made float64 at once: a megabyte, which stays in the cache."""

FLAT = 0.1
"""Smallest over largest singular value from which on a full rank is that of the labels."""

FILLED = 0.99
"""Share of entries that are not zero in an exact gradient, rows and columns of zeros aside."""

PRECISE = 1e-6
"""Singular values below this share of the largest are lost in a Gram matrix of float64."""


@dataclass(frozen=True, slots=True, eq=False)
class Subspace:
    """The leading S dimensions of a gradient.

    columns (S, C): U' dW, a column a class. values: singular values of dW, largest first, as many
    as were computed. size: S as estimated or told; of it, S rows exceed rounding. signal: of these,
    how many exceed noise, where there is any. gap: the S-th singular value over the next (infinite
    where nothing but rounding is left). full: rows and columns of zeros aside, no value is as small
    as rounding. coarse: entries were dropped or rounded to few values.
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
    def halfway(self) -> Array:
        """The dimensions above noise over the roots of their values, (C, signal), a class a row."""
        found: Array = self.columns[: self.signal].T / np.sqrt(self.values[: self.signal])
        return found

    @property
    def length(self) -> float:
        """The Frobenius norm of the gradient."""
        return float(np.linalg.norm(self.values))

    @property
    def clean(self) -> bool:
        """Whether nothing but rounding is outside, as of an update that nobody perturbed."""
        tail = self.values[len(self.columns) :]
        return not (self.full or self.coarse) and bool((tail < 1e-5 * self.values[0]).all())


def leading(
    weight: Tensor, mode: Rank, rng: torch.Generator, *, told: int | None, tolerance: float
) -> Subspace:
    """The leading dimensions of a gradient (C, d), float32 or float64.

    mode: "gap", those above rounding and noise (`numerical_rank`).
    "tolerance": those above `tolerance` of the largest. "oracle": `told`.
    rng: of the random sketch, which is exact up to rounding where the rank is below its width.
    """
    known = told if mode == "oracle" else None
    floor = rounding(weight)
    projected, values, vectors = _spectrum(weight, floor, rng, known)
    above = rank_above(values, absolute=floor)
    sent = filled_sides(weight)
    full = above >= min(sent)
    # An exact gradient has no zeros outside rows and columns of zeros.
    filled = int(weight.count_nonzero())
    coarse = filled < FILLED * sent[0] * sent[1] or _few_values(weight)
    over = numerical_rank(values, sent, floor, noisy=coarse)
    # Where all but a few rows were dropped, those may be the labels' own.
    alone = full and sent[0] < len(weight) and values[above - 1] > FLAT * values[0]
    if alone and not coarse:
        over = above
    if known is not None:
        size = known
    elif mode == "tolerance":
        size = rank_above(values, relative=tolerance)
    else:
        size = over
    kept = max(1, min(size, above))
    following = values[kept] if kept < len(values) else 0.0
    return Subspace(
        columns=(projected @ vectors[:, :kept]).T.copy(),
        values=values,
        size=max(1, size),
        signal=max(1, min(kept, over)),
        gap=float(values[kept - 1] / following) if following > floor else float("inf"),
        full=full,
        coarse=coarse,
    )


def _blocks(weight: Tensor) -> tuple[Tensor, ...]:
    return torch.split(weight, max(1, BLOCK // weight.shape[1]))


def _spectrum(
    weight: Tensor, floor: float, rng: torch.Generator, known: int | None
) -> tuple[Array, Array, Array]:
    """projected (C, k), singular values (k,), and right singular vectors (k, k) of projected."""
    shortest = min(weight.shape)
    widths = [SKETCH, 4 * SKETCH]
    for width in widths:
        # Of rank k the sketch must be wider; a wide one costs more than all of the matrix.
        if width > shortest / 2 or (known or 0) + 8 > width:
            continue
        mix = torch.randn(len(weight), width, generator=rng, dtype=weight.dtype)
        basis = torch.linalg.qr((weight.T @ mix.to(weight.device)).double()).Q
        parts = [part.double() @ basis for part in _blocks(weight)]
        projected = torch.cat(parts).cpu().numpy()
        values, vectors = _eigen(projected, floor)
        if values[-1] <= floor:
            return projected, values, vectors
    whole = weight.double().cpu().numpy()
    if whole.shape[1] > whole.shape[0]:
        # As many classes at most: an orthonormal basis of the rows does not change the rest.
        whole = np.linalg.qr(whole.T)[1].T
    values, vectors = _eigen(whole, floor)
    return whole, values, vectors


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
    """Whether entries were rounded to few values: an exact row has hardly one of them twice."""
    rows = torch.linalg.vector_norm(weight, dim=1)
    longest = weight[rows.topk(min(8, len(rows))).indices]
    values = [row[row != 0].abs() for row in longest]
    total = sum(len(row) for row in values)
    return sum(len(row.unique()) for row in values) < FILLED / 2 * total
