"""Searches of directions q for which many rows of L vanish."""

import torch
from torch import Tensor

STEPS = 300
"""Steps of the subgradient method."""

SHRINK = 0.98
"""By which its step size is multiplied at each step."""

REWEIGHTED = 15
"""Steps of reweighted least squares."""

DEPENDENT = 1e-5
"""Singular values of rows below this share of the largest are zero."""


def unit(rows: Tensor) -> Tensor:
    """Rows (S, B) scaled to length one."""
    found: Tensor = rows / rows.norm(dim=1, keepdim=True)
    return found


def sampled(rows: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Directions for which B - 1 rows vanish, chosen at random: SPEAR's sampling.

    Args:
        rows: (R, B).
        count: Number of choices.
        rng: Draws them.

    Returns:
        Unit directions (S, B); choices of dependent rows are left out, and all if there are fewer
        than B - 1 rows.
    """
    width = rows.shape[1]
    if len(rows) < width - 1:
        return rows[:0]
    chosen = torch.rand(count, len(rows), generator=rng).argsort(dim=1)[:, : width - 1]
    last = torch.randn(count, 1, width, generator=rng, dtype=rows.dtype)
    right = rows.new_zeros(count, width)
    right[:, -1] = 1
    found, failed = torch.linalg.solve_ex(torch.cat([rows[chosen], last], dim=1), right)
    return unit(found[(failed == 0) & found.isfinite().all(dim=1)])


def reweighted(rows: Tensor, starts: Tensor, near: float) -> Tensor:
    """Turn small values of rows into zeros, by reweighted least squares on the sphere.

    Args:
        rows: Orthonormal columns (R, B).
        starts: Unit directions (S, B).
        near: Size, relative to the mean, of the values that count as small in the first step.
    """
    found, size = starts, len(rows) ** -0.5
    for step in range(REWEIGHTED):
        small = near * size * (1e-5 / near) ** (step / (REWEIGHTED - 1))
        weights = 1 / ((found @ rows.T).square() + small**2)
        normal = (weights[:, :, None] * rows).transpose(1, 2) @ rows
        found = unit(torch.linalg.solve(normal, found))
    return found


def descended(rows: Tensor, starts: Tensor) -> Tensor:
    """Minimise the sum of absolute values on the sphere, by a subgradient method.

    Args:
        rows: Orthonormal columns (R, B).
        starts: Unit directions (S, B).
    """
    found, step = starts, 0.2
    for _ in range(STEPS):
        slope = (found @ rows.T).sign() @ rows / len(rows) ** 0.5
        slope -= (slope * found).sum(dim=1, keepdim=True) * found
        found = unit(found - step * slope)
        step *= SHRINK
    return found


def whitened(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns with the span of some rows' columns.

    Returns:
        The columns (R, r), and the map (r, B) of their directions to those of the rows.
    """
    basis, sizes, across = torch.linalg.svd(rows, full_matrices=False)
    kept = sizes > DEPENDENT * sizes[0]
    return basis[:, kept], across[kept] / sizes[kept, None]
