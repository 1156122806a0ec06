"""Non-negative least squares by an active-set method with a warm start."""

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from adversaries.labels.rlg.separability import Array, Indices


def nonnegative(a: Array, b: Array, start: Indices) -> tuple[Indices, Array, Array] | None:
    """Minimise |a x - b| over x >= 0 (Lawson and Hanson, 1974, chapter 23).

    Args:
        a: Matrix (S, n).
        b: Target (S,).
        start: Indices of the columns with which the active set begins.

    Returns:
        Indices of the columns with x > 0, their x, and the residual b - a x (S,); None if columns
        are so nearly dependent that the method does not converge.
    """
    gram, along = a.T @ a, a.T @ b
    scale = float(np.linalg.norm(b))
    passive = np.zeros(a.shape[1], dtype=bool)
    x = np.zeros(a.shape[1])

    def least_squares() -> Array | None:
        chosen = np.flatnonzero(passive)
        factor, broke = dpotrf(gram[chosen[:, None], chosen])
        if broke:
            return None
        z = dpotrs(factor, along[chosen])[0]
        # One step of refinement on the residual: the Gram matrix has lost half of the digits.
        left = b - a[:, chosen] @ z
        again: Array = z + dpotrs(factor, a[:, chosen].T @ left)[0]
        return again

    if not passive.size:
        return np.flatnonzero(passive), x, b

    passive[start] = True
    while passive.any():
        z = least_squares()
        if z is None:
            passive[:] = False
            break
        if (z > 0).all():
            x[passive] = z
            break
        passive[np.flatnonzero(passive)[z <= 0]] = False
    for _ in range(6 * len(b) + 20):
        residual = b - a[:, passive] @ x[passive]
        if np.linalg.norm(residual) <= 1e-13 * scale:
            break
        gain = a.T @ residual
        gain[passive] = -np.inf
        best = int(gain.argmax())
        if gain[best] <= 1e-12 * float(np.linalg.norm(residual)) or passive.sum() == len(b):
            break
        passive[best] = True
        while True:
            z = least_squares()
            if z is None:
                return None
            chosen = np.flatnonzero(passive)
            if (z > 0).all():
                x[:] = 0
                x[chosen] = z
                break
            down = np.flatnonzero(z <= 0)
            steps = x[chosen][down] / (x[chosen][down] - z[down])
            first = down[steps.argmin()]
            x[chosen] = np.maximum(x[chosen] + steps.min() * (z - x[chosen]), 0)
            x[chosen[first]] = 0
            passive[chosen] = x[chosen] > 0
            if not passive[best]:
                break
        if not passive[best]:
            break  # rounding: the column that was added was removed again
    else:
        return None
    support = np.flatnonzero(passive)
    return support, x[support], b - a[:, support] @ x[support]
