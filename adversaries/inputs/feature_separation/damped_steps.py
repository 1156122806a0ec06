"""Steps of Levenberg-Marquardt: (J'J + damping diag J'J) x = slope, solved in two ways."""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""Multiplies the Gauss-Newton matrix J'J by a change of the unknowns (B, B)."""

Solver = Callable[[Tensor, float], Tensor | None]
"""Finds a step (B, B) for a slope and a damping; None if there is none."""

INNER, PRECISE = 2000, 1e-3
"""Most iterations of the conjugate gradients of a step, and the residual at which they end."""


def directly(matrix: Tensor, slope: Tensor, damping: float) -> Tensor | None:
    """Solve for a step (B, B) by the matrix J'J (B^2, B^2); None if it is not positive definite."""
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
