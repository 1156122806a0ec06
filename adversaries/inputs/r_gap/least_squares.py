"""Least squares of several victims at once, by conjugate gradients (CGLS)."""

from collections.abc import Callable

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
"""A linear map of vectors, one for each victim: (V, n) to (V, m) or back."""


def least_squares(
    product: Product, transposed: Product, right: Tensor, *, accuracy: float, iterations: int
) -> Tensor:
    """Minimise |A x - b| for every victim on its own, from x = 0.

    Victims are independent: each one's solution stays as it is once it is accurate enough.

    Args:
        product: A x, (V, n) to (V, m).
        transposed: A' r, (V, m) to (V, n).
        right: b (V, m).
        accuracy: Ends a victim's iterations when |A' (A x - b)| falls below this share of |A' b|.
        iterations: The largest number of iterations.

    Returns:
        x (V, n).
    """
    rest = right
    slope = transposed(rest)
    found, step = torch.zeros_like(slope), slope
    size = slope.square().sum(dim=1, keepdim=True)
    enough = accuracy**2 * size
    for _ in range(iterations):
        moving = size > enough
        if not moving.any():
            break
        change = product(step)
        length = size / change.square().sum(dim=1, keepdim=True).clamp(min=1e-300) * moving
        found = found + length * step
        rest = rest - length * change
        slope = transposed(rest)
        last, size = size, torch.where(moving, slope.square().sum(dim=1, keepdim=True), size)
        step = slope + size / last.clamp(min=1e-300) * step
    return found
