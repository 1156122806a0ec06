"""Non-negative least squares by an active-set method with a warm start."""

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from adversaries.labels.rlg.separability import Array, Indices

ENTERING = 8
"""Number of columns, those that point downhill most, that join the active set at a time."""


def nonnegative(a: Array, b: Array, start: Indices) -> tuple[Indices, Array, Array] | None:
    """Minimise |a x - b| over x >= 0 (Lawson and Hanson, 1974, chapter 23).

    Where their method adds one column to the active set, several are added here. The objective
    decreases all the same, because at least one of them has x > 0 in the solution of the set.

    Args:
        a: Matrix (S, n).
        b: Target (S,).
        start: Indices of the columns with which the active set begins.

    Returns:
        Indices of the columns with x > 0, their x, and the residual b - a x (S,); None if columns
        are so nearly dependent that the method does not converge.
    """
    rows = np.ascontiguousarray(a.T)
    gram, along = rows @ a, rows @ b
    scale = float(np.linalg.norm(b))
    passive = np.zeros(len(rows), dtype=bool)
    x = np.zeros(len(rows))

    def least_squares() -> tuple[Indices, Array] | None:
        """Indices of the active set and its x; None if its columns are nearly dependent."""
        chosen = np.flatnonzero(passive)
        factor, broke = dpotrf(gram[chosen[:, None], chosen])
        if broke:
            return None
        z, own = dpotrs(factor, along[chosen])[0], rows[chosen]
        # One step of refinement on the residual: the Gram matrix has lost half of the digits.
        again: Array = z + dpotrs(factor, own @ (b - z @ own))[0]
        return chosen, again

    if not passive.size:
        return np.flatnonzero(passive), x, b

    passive[start] = True
    while passive.any():
        solved = least_squares()
        if solved is None:
            passive[:] = False
            break
        chosen, z = solved
        if (z > 0).all():
            x[chosen] = z
            break
        passive[chosen[z <= 0]] = False
    for _ in range(6 * len(b) + 20):
        chosen = np.flatnonzero(passive)
        residual = b - x[chosen] @ rows[chosen]
        if np.linalg.norm(residual) <= 1e-13 * scale or len(chosen) == len(b):
            break
        gain = rows @ residual
        gain[chosen] = -np.inf
        new = np.argsort(-gain, kind="stable")[: min(ENTERING, len(b) - len(chosen))]
        new = new[gain[new] > 1e-12 * float(np.linalg.norm(residual))]
        if not new.size:
            break
        passive[new] = True
        solved = least_squares()
        if solved is None and len(new) > 1:
            passive[new[1:]] = False
            solved = least_squares()
        while solved is not None:
            chosen, z = solved
            if (z > 0).all():
                x[:] = 0
                x[chosen] = z
                break
            down = z <= 0
            unwanted = chosen[down & (x[chosen] == 0)]
            if unwanted.size:  # columns that were added and do not help beside the others
                passive[unwanted] = False
            else:
                steps = x[chosen[down]] / (x[chosen[down]] - z[down])
                x[chosen] = np.maximum(x[chosen] + steps.min() * (z - x[chosen]), 0)
                x[chosen[np.flatnonzero(down)[steps.argmin()]]] = 0
                passive[chosen] = x[chosen] > 0
            if not passive[new].any():
                break
            solved = least_squares()
        else:
            return None
        if not passive[new].any():
            break  # rounding: all columns that were added were removed again
    else:
        return None
    support = np.flatnonzero(passive)
    return support, x[support], b - x[support] @ rows[support]
