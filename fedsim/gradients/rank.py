"""Numerical rank of a gradient: how many of its singular values exceed rounding and noise.

One rule serves every attack. A gradient is what its examples (tokens, frames) span, plus the
rounding of what was sent, plus what a defense added. `rounding` bounds the largest singular value
that the first of these errors has; `numerical_rank` estimates the level of the second from the
singular values themselves.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Values = Tensor | NDArray[np.float64]

SUMMED = 4.0
"""Rounding errors of a sum over examples, in those of its largest term. Gradients of image, text
and speech models, computed in float32, have 1.6 at most."""

FALL = 10.0
"""Factor by which singular values fall at the rank of a gradient without noise, at least."""

CLEAR = 100.0
"""Factor by which they fall from the gradient to what noise leaves over, if noise is small."""

BLOCK = 2**17
"""Entries that are converted to float64 at once: a megabyte, which fits the cache."""

ITERATIONS = 4
"""How often the level of noise is estimated, at most: where noise is not white, as in layers of
unlike scale that are taken together, the estimate sinks from one to the next."""


def rank_above(values: Values, *, absolute: float = 0.0, relative: float = 0.0) -> int:
    """Count the singular values above a tolerance.

    Args:
        values: Singular values (k,) float64, largest first.
        absolute: Tolerance in the unit of the values.
        relative: Tolerance as a share of the largest; the larger of both tolerances counts.

    Returns:
        The rank, 0 to k.
    """
    largest = float(values[0]) if len(values) else 0.0
    return int((values > max(absolute, relative * largest)).sum())


def gap_ratios(values: Values, floor: float) -> NDArray[np.float64]:
    """By what factor each singular value exceeds the next, where both are above rounding.

    Args:
        values: Singular values (k,) float64 on the CPU, largest first; 0 follows the last.
        floor: Level of rounding; smaller values count as this, so that they fall by 1.

    Returns:
        Factors (k,) float64. The rank is one more than the position of the largest.
    """
    raised = np.maximum(np.append(np.asarray(values), 0), floor)
    found: NDArray[np.float64] = raised[:-1] / raised[1:]
    return found


def noise_threshold(shape: Sequence[int]) -> float:
    """Optimal threshold for singular values under white noise, in multiples of their median.

    Gavish and Donoho (2014), approximation for an unknown level of noise.

    Args:
        shape: Sides of the matrix, both above 0.
    """
    b = min(shape) / max(shape)
    return 0.56 * b**3 - 0.95 * b**2 + 1.82 * b + 1.43


def rounding(matrix: Tensor, *, sums: bool = True) -> float:
    """Bound the singular values that rounding adds to a gradient.

    The spectral norm of a matrix of independent errors is about that of its longest row plus that
    of its longest column (Latala, 2005; Bandeira and van Handel, 2016). An entry g that is sent in
    a format with unit roundoff u has an error of u |g| / sqrt(3) root mean square at most, and
    below the smallest normal number a constant one. What is sent was computed in float32, or in
    float64 if it is that precise: its sums over examples have errors of their own, `SUMMED` u |g|.

    The format is the narrowest of bfloat16, float16, float32 and float64 that holds the longest
    row exactly, so that a tensor that was rounded to 16 bits and is float32 again is recognised.
    Rounding of weights, of which a gradient was the difference, is larger by the factor
    |w| / (lr |g|) and is noise here; `weight_rounding` has its errors if the weights are known.

    Args:
        matrix: Gradient (m, n), floating point, as it was sent.
        sums: Whether errors of sums over examples count. Without them the bound is a lower one, for
            attacks to which a missing direction costs more than one too many.

    Returns:
        The bound, in the unit of the gradient.
    """
    if not matrix.numel():
        return 0.0
    rows, columns = _lengths(matrix)
    longest = matrix[rows.argmax()]
    formats = torch.bfloat16, torch.float16, torch.float32
    held = (one for one in formats if torch.equal(longest.to(one).to(longest.dtype), longest))
    sent = next(held, torch.float64)
    unit = torch.finfo(sent).eps / 2
    computed = min(unit, torch.finfo(torch.float32).eps / 2)
    least = torch.finfo(sent).smallest_normal * unit
    spread = float(rows.max() + columns.max())
    sides = sum(math.sqrt(side) for side in matrix.shape)
    stored = (unit * spread + least * sides) / math.sqrt(3)
    return max(SUMMED * computed * spread, stored) if sums else stored


def _lengths(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Norms of the rows (m,) and columns (n,) of a matrix, float64.

    Blocks that fit the cache take a twelfth of the time of `vector_norm` with a dtype.
    """
    rows, columns = [], matrix.new_zeros(matrix.shape[1], dtype=torch.float64)
    for block in torch.split(matrix, max(1, BLOCK // matrix.shape[1])):
        squares = block.double().square()
        rows.append(squares.sum(dim=1))
        columns += squares.sum(dim=0)
    return torch.cat(rows).sqrt(), columns.sqrt()


def weight_rounding(weight: Tensor, divisor: float) -> Tensor:
    """Root mean square errors that rounding of sent weights leaves in a gradient.

    A float32 weight is a multiple of its unit in the last place, which is 2^-23 times the largest
    power of two up to |w|. Rounding to it has a uniform error, 1 / sqrt(12) units root mean square.
    The gradient is the weights' change over `divisor`, and so is its error.

    Args:
        weight: Weights as they were sent, floating point, of any shape.
        divisor: Learning rate times steps, as in `Observation.divisor`.

    Returns:
        The errors, float64 of the shape of `weight`, in the unit of the gradient.
    """
    unit = torch.finfo(weight.dtype).eps / math.sqrt(12) / divisor
    power = torch.frexp(weight).exponent - 1
    return torch.ldexp((weight != 0).double() * unit, power)


def filled_sides(matrix: Tensor) -> tuple[int, int]:
    """Count the rows and the columns of a matrix (m, n) that are not zero throughout."""
    return int(matrix.any(dim=1).sum()), int(matrix.any(dim=0).sum())


def numerical_rank(
    values: Values, shape: Sequence[int], level: float, *, noisy: bool = False
) -> int:
    """Count the singular values that exceed both rounding and noise: the rank of a gradient.

    Values above `level` count if they fall from there by more than `FALL`. Otherwise, and where
    all exceed it, something larger than rounding fills the gradient: noise, 16 bits inside the
    client's own computation, or the rounding of weights whose difference the gradient was. Or its
    own values sink to rounding without a fall. If the values fall somewhere by more than `CLEAR`,
    and those after the largest fall could be noise, those before it count. If not, the values left
    over show the level of the noise: a value counts above the optimal threshold
    for white noise (Gavish and Donoho, 2014), `noise_threshold` of the rest's shape times the
    median of the rest. As the rest depends on the rank, both are found in turns. Of an unperturbed
    gradient that threshold lies below `level` and changes nothing.

    Several local steps need no term of their own: they add examples, and the rounding of weights.

    Args:
        values: Singular values (k,) float64, largest first; those left out up to the smaller side
            count as 0.
        shape: Sides of the gradient, without rows and columns of zeros (`filled_sides`).
        level: Bound on rounding (`rounding`).
        noisy: Whether the gradient is known to be perturbed, by a defense for example.

    Returns:
        The rank, 0 to k. It is too low for a gradient without noise that has full rank, and under
        strong noise for a rank near the full one.
    """
    most = min(shape)
    known = np.asarray(values.cpu() if isinstance(values, Tensor) else values)[:most]
    every = np.pad(known, (0, most - len(known)))
    rank = rank_above(every, absolute=level)
    if not rank:
        return 0
    if not noisy and rank < most and every[rank] <= every[rank - 1] / FALL:
        return rank
    falls = gap_ratios(every[:rank], level)
    if not noisy and rank > 1 and falls[:-1].max() > CLEAR:
        largest = int(falls[:-1].argmax()) + 1
        # Noise has no value far above its median; a gradient that sinks to rounding has.
        if every[largest] <= FALL * _noise(every, largest, shape):
            return largest
    rank = 0
    for _ in range(ITERATIONS):
        found = rank_above(every, absolute=max(level, _noise(every, rank, shape)))
        if found in (rank, most):
            break
        rank = found
    return rank


def _noise(every: NDArray[np.float64], rank: int, shape: Sequence[int]) -> float:
    """The threshold for white noise from the values beyond a rank."""
    return noise_threshold([side - rank for side in shape]) * float(np.median(every[rank:]))


def rank_of(matrix: Tensor, *, sums: bool = True) -> int:
    """Compute the numerical rank of a gradient.

    Args:
        matrix: Gradient (m, n), floating point, as it was sent.
        sums: As for `rounding`.

    Returns:
        The rank, as `numerical_rank` decides it.
    """
    exact = matrix.double()
    if len(exact) > exact.shape[1]:
        exact = torch.linalg.qr(exact, mode="r").R
    level = rounding(matrix, sums=sums)
    return numerical_rank(torch.linalg.svdvals(exact), filled_sides(matrix), level)
