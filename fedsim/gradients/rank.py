"""Numerical rank of a gradient: how many of its singular values exceed rounding or noise."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["gap_ratios", "noise_threshold", "rank_above", "rounding"]

Values = Tensor | NDArray[np.float64]


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


def rounding(matrix: Tensor) -> float:
    """Bound the singular values that rounding to float32 brings to a matrix (m, n).

    2^-23 (m^-1/2 + n^-1/2) of the Frobenius norm; independent rounding of entries of one size
    brings half of that at most.
    """
    rows, columns = matrix.shape
    return float(matrix.norm()) * 2.0**-23 * (1 / math.sqrt(rows) + 1 / math.sqrt(columns))
