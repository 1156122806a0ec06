"""The gradient of a fully connected layer as a product of low rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

CERTAIN = 30.0
"""How many standard deviations of rounding noise a value must exceed to be no zero."""

FLOOR = 1e-14
"""Noise of a direction's values in float64, which bounds that of exact gradients from below."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """A layer's gradient dW = L R of rank B, and its forward pass in the coordinates of R.

    dZ (units, B) is the gradient of the loss by the layer's outputs Z = W X + b. There is one
    invertible Q (B, B) with dZ = L Q and X' = Q^-1 R: column i of Q gives the column of dZ of
    example i, and column i of A = Q^-T its inputs R' a. From here on a direction q is a row (B,),
    and so are the coordinates a of an input.

    Attributes:
        left: L, orthonormal columns (units, B).
        sizes: Singular values of the gradient (B,).
        right: R (B, inputs).
        sums: L^+ dL/db (B,): a . sums = 1 for the coordinates of every example.
        weight: W R' (units, B).
        bias: b (units,).
        noise: Standard deviation of the rounding or noise in an entry of dW (units,).
    """

    left: Tensor
    sizes: Tensor
    right: Tensor
    sums: Tensor
    weight: Tensor
    bias: Tensor
    noise: Tensor

    @classmethod
    def of(cls, gradient: Tensor, weight: Tensor, bias: Tensor, rank: int) -> "LowRank":
        """Decompose a gradient.

        Args:
            gradient: [dL/dW | dL/db] of the layer (units, inputs + 1).
            weight: The layer's weight (units, inputs).
            bias: Its bias (units,).
            rank: The number of examples B.
        """
        rows, sums = gradient[:, :-1], gradient[:, -1]
        units, width = rows.shape
        if width > units:  # the singular values of R in Q R, which is smaller
            basis, small = torch.linalg.qr(rows.T)
            inner, sizes, left = torch.linalg.svd(small, full_matrices=False)
            across, left = (basis @ inner[:, :rank]).T, left[:rank].T
        else:
            left, sizes, across = torch.linalg.svd(rows, full_matrices=False)
            left, across = left[:, :rank], across[:rank]
        off = (rows - rows @ across.T @ across).norm(dim=1) / max(1, width - rank) ** 0.5
        noise = torch.maximum(off, off.square().mean().sqrt())
        right = sizes[:rank, None] * across
        return cls(
            left,
            sizes[:rank],
            right,
            left.T @ sums,
            weight @ right.T,
            bias,
            noise,
        )

    @property
    def rank(self) -> int:
        """The number of examples B."""
        return len(self.sizes)

    def fires(self, directions: Tensor) -> Tensor:
        """Which entries of L q are no zeros, for unit directions (S, B): (S, units)."""
        return (directions @ self.left.T).abs() > self.level(directions)

    def level(self, directions: Tensor) -> Tensor:
        """Size that an entry of L q must exceed to be no zero (S, units)."""
        grown = (directions / self.sizes).norm(dim=1, keepdim=True)
        found: Tensor = CERTAIN * (self.noise * grown + FLOOR)
        return found

    def outputs(self, coordinates: Tensor) -> Tensor:
        """The layer's outputs Z (S, units) at inputs with these coordinates (S, B)."""
        return coordinates @ self.weight.T + self.bias
