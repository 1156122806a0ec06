"""Levenberg-Marquardt, whose steps (J'J + damping diag J'J) x = slope are solved in two ways."""

from collections.abc import Callable, Sequence

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

PATIENCE, STALLED, LARGE = 15, 0.9, 1e-5
"""A search also ends where this many steps leave that share of a residual larger than the third. Of
searches that succeed, half of the residual was left at most."""

INNER, PRECISE = 2000, 1e-2
"""Most iterations of the conjugate gradients of a step, and the residual at which they end."""


def descend(
    point: Tensor,
    residual: Callable[[Tensor], float],
    linearised: Callable[[Tensor], tuple[Solver, Tensor]],
    steps: int,
) -> tuple[float, Tensor]:
    """Minimise the norm of a residual by Levenberg-Marquardt.

    Args:
        point: Where it begins.
        residual: The norm at a point.
        linearised: A solver of steps there, and the slope J' r.
        steps: The largest number of steps.

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
        if least > LARGE and len(passed) > PATIENCE and least > STALLED * passed[-PATIENCE - 1]:
            break
    return least, point


def directly(matrix: Tensor, slope: Tensor, damping: float) -> Tensor | None:
    """Solve for a step, of the slope's shape, by the matrix J'J; None if it is not definite."""
    factors, failed = torch.linalg.cholesky_ex(matrix + torch.diag(damping * matrix.diagonal()))
    if failed.any():
        return None
    return torch.cholesky_solve(slope.reshape(-1, 1), factors).view(slope.shape)


def by_conjugate_gradients(product: Product, blocks: Sequence[tuple[Tensor, Tensor]]) -> Solver:
    """A solver by products with J'J, preconditioned by diagonal blocks of it.

    Args:
        product: Multiplies J'J by a change of the unknowns (B, B).
        blocks: Rows of the unknowns (groups, m) that have a block together, and the blocks
            (groups, m B, m B). Each row is in one group.
    """
    rows = blocks[0][1].shape[1] // blocks[0][0].shape[1]
    diagonal = torch.empty(sum(own.numel() for own, _ in blocks), rows).to(blocks[0][1])
    for own, block in blocks:
        diagonal[own] = block.diagonal(dim1=1, dim2=2).view(*own.shape, -1)

    def solve(slope: Tensor, damping: float) -> Tensor | None:
        inverses = list[tuple[Tensor, Tensor]]()
        for own, block in blocks:
            damped = block + torch.diag_embed(damping * block.diagonal(dim1=1, dim2=2))
            factors, failed = torch.linalg.cholesky_ex(damped)
            if failed.any():
                return None
            inverses.append((own, torch.cholesky_inverse(factors)))

        def preconditioned(values: Tensor) -> Tensor:
            found = torch.empty_like(values)
            for own, inverse in inverses:
                found[own] = (inverse @ values[own].flatten(1)[:, :, None]).view(*own.shape, -1)
            return found

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
