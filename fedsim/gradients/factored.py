"""Gradients of sequences as sums of outer products, one term for each step.

A weight that L steps share has the gradient sum_i delta_i x_i', whose rank is L at most. Gradients
of dummy sequences and observed ones are kept in factors, so that a head of C = 16,000 word pieces
costs L (C + d) operations instead of C d.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.gradients.ghost import Factored, GhostGradients
from fedsim.gradients.rank import numerical_rank, rounding
from fedsim.victim import VictimModel

__all__ = ["Factored", "FactoredGradients", "Leading", "leading", "numerical_rank", "rounding"]

OVERSAMPLED = 8
POWERS = 3
"""Additional columns and power iterations of the randomised range finder."""


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """The leading part U diag(s) V' of a matrix, or of several matrices.

    Attributes:
        u: Left singular vectors (..., out, r).
        s: Singular values (..., r), largest first.
        v: Right singular vectors (..., in, r).
    """

    u: Tensor
    s: Tensor
    v: Tensor

    def squared_distance(self, ours: Factored) -> Tensor:
        """Compute ||left' right - U diag(s) V'||^2 for each of R products; differentiable.

        The difference is split into four orthogonal parts, inside and outside U and V, each of
        which is a sum of squares, so that nothing cancels near a match.

        Args:
            ours: Factors left (R, k, out) and right (R, k, in).

        Returns:
            Squared distances (R,).
        """
        left, right = ours
        a, b = left @ self.u, right @ self.v
        inside = (a.mT @ b - torch.diag_embed(self.s)).square().sum(dim=(-2, -1))
        beyond = right - b @ self.v.mT
        outside = left - a @ self.u.mT
        return (
            inside
            + (gram(a) * gram(beyond)).sum(dim=(-2, -1))
            + (gram(outside) * gram(right)).sum(dim=(-2, -1))
        )


def gram(rows: Tensor) -> Tensor:
    """Inner products (..., k, k) of rows (..., k, n)."""
    return rows @ rows.mT


def leading(matrix: Tensor, rank: int, rng: torch.Generator) -> Leading:
    """Compute the leading singular triplets of a matrix by random projections.

    Source: Halko, Martinsson and Tropp, Finding structure with randomness, 2011. The result is
    exact up to rounding if the matrix has no larger rank.

    Args:
        matrix: Matrix (out, in).
        rank: Number of triplets at most.
        rng: Draws the projection.
    """
    width = min(rank + OVERSAMPLED, *matrix.shape)
    start = torch.randn(matrix.shape[1], width, generator=rng, dtype=torch.float64)
    basis = torch.linalg.qr(matrix @ start.to(matrix))[0]
    for _ in range(POWERS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.mT @ basis)[0])[0]
    u, s, vh = torch.linalg.svd(basis.mT @ matrix, full_matrices=False)
    return Leading(basis @ u[:, :rank], s[:rank], vh[:rank].mT)


class FactoredGradients:
    """The gradients of the loss for R dummy sequences, in factors, computed in one pass.

    Parameters must belong to layers for which `GhostGradients` has a rule; embeddings may be fed
    smooth labels.

    Args:
        model: The victim's model, which is used in its present mode and not changed.
        names: Names of the parameters.
        at: The point at which inputs are fed.

    Raises:
        ValueError: A parameter belongs to another kind of layer.
    """

    def __init__(self, model: VictimModel, names: Iterable[str], *, at: str = "input") -> None:
        self._gradients = GhostGradients(model, names, at=at, even=True)

    def __call__(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor | Factored]:
        """Compute the gradients of R sequences.

        Args:
            inputs: (R, L, ...).
            targets: Smooth labels (R, L, C).

        Returns:
            By name, factors of each weight and tensors (R, n) of each bias.
        """
        return self._gradients(inputs[:, None], targets[:, None])
