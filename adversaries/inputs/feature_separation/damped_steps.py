"""Levenberg-Marquardt, whose steps (J'J + damping diag J'J) x = slope are solved in two ways."""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""Multiplies the Gauss-Newton matrix J'J by a change of the unknowns (B, B)."""

Solver = Callable[[Tensor, float], Tensor | None]
"""Finds a step (B, B) for a slope and a damping; None if there is none."""

SETTLED, SMALL = 1e-3, 1e-6
"""Relative fall of the residual below which a search ends, once it is below the second."""

DAMPING, TRIES, RISE, SINK = 1e-3, 12, 4.0, 5.0
"""The damping at first, tries of a step, and the damping's factor after a failed one, its divisor
after a successful one."""

STALLED = 0.9
"""Share of the residual that is left, after `patience` steps, where a search has stalled."""

INNER, PRECISE = 2000, 1e-3
"""Most iterations of the conjugate gradients of a step, and the residual at which they end."""


def descend(
    point: Tensor,
    residual: Callable[[Tensor], float],
    linearised: Callable[[Tensor], tuple[Solver, Tensor]],
    steps: int,
    patience: int,
) -> tuple[float, Tensor]:
    """Minimise the norm of a residual by Levenberg-Marquardt.

    Args:
        point: Where it begins.
        residual: The norm at a point.
        linearised: A solver of steps there, and the slope J' r.
        steps: The largest number of steps.
        patience: Steps after which the residual must have fallen to `STALLED` of what it was.

    Returns:
        The smallest norm and its point.
    """
    damping, least = DAMPING, residual(point)
    passed = [least]
    for _ in range(steps):
        solve, slope = linearised(point)
        better = False
        for _ in range(TRIES):
            if (step := solve(slope, damping)) is not None:
                reached = residual(moved := point - step)
                if better := reached < least:
                    break
            damping *= RISE
        if not better:
            break
        fell, least, point = 1 - reached / least, reached, moved
        damping /= SINK
        passed.append(least)
        if fell < SETTLED and least < SMALL:
            break
        if len(passed) > patience and least > STALLED * passed[-patience - 1]:
            break
    return least, point


def directly(matrix: Tensor, slope: Tensor, damping: float) -> Tensor | None:
    """Solve for a step, of the slope's shape, by the matrix J'J; None if it is not definite."""
    factors, failed = torch.linalg.cholesky_ex(matrix + torch.diag(damping * matrix.diagonal()))
    if failed.any():
        return None
    return torch.cholesky_solve(slope.reshape(-1, 1), factors).view(slope.shape)


def by_conjugate_gradients(product: Product, blocks: Tensor) -> Solver:
    """A solver by products with J'J, preconditioned by its diagonal blocks (B, B, B)."""
    diagonal = blocks.diagonal(dim1=1, dim2=2)

    def solve(slope: Tensor, damping: float) -> Tensor | None:
        factors, failed = torch.linalg.cholesky_ex(blocks + torch.diag_embed(damping * diagonal))
        if failed.any():
            return None

        def preconditioned(values: Tensor) -> Tensor:
            return torch.cholesky_solve(values[:, :, None], factors)[:, :, 0]

        found, rest = torch.zeros_like(slope), slope.clone()
        direction = ahead = preconditioned(rest)
        weight, goal = (rest * ahead).sum(), PRECISE * rest.norm()
        for _ in range(INNER):
            image = product(direction) + damping * diagonal * direction
            along = weight / (direction * image).sum()
            found, rest = found + along * direction, rest - along * image
            if rest.norm() < goal:
                break
            ahead = preconditioned(rest)
            before, weight = weight, (rest * ahead).sum()
            direction = ahead + (weight / before) * direction
        return found

    return solve
