"""Regression of rows of which many are explained exactly and the others not at all."""

import torch
from torch import Tensor

STEPS = 60
"""Steps of reweighted least squares."""

PRIOR_STEPS = 15
"""Steps after which the prior weights no longer count."""

EXACT = 1e-4
"""Largest relative error of a row that is explained."""

ALONE = 0.999
"""Leverage above which a row is explained because an unknown serves that row alone."""


def explain(
    known: Tensor, rows: Tensor, sizes: Tensor, start: Tensor | None, prior: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Find A so that rows = known A holds exactly for as many rows as possible.

    Args:
        known: (R, k).
        rows: (R, B).
        sizes: Lengths by which errors of rows are measured (R,).
        start: A to begin with (k, B); by default least squares with the prior weights.
        prior: Weights of the rows in the first steps (R,), if some are likelier to be explained.

    Returns:
        A (k, B), and which of its rows several explained rows agree on (k,).
    """
    likely = torch.ones_like(sizes) if prior is None else prior
    found = _least_squares(known, rows, likely / sizes) if start is None else start
    for step in range(STEPS):
        errors = (rows - known @ found).norm(dim=1) / sizes
        near = max(1e-6, 0.3 * 0.75**step)
        weights = likely ** max(0, 1 - step / PRIOR_STEPS) / (errors.square() + near**2).sqrt()
        found = _least_squares(known, rows, weights / sizes)
    errors = (rows - known @ found).norm(dim=1) / sizes
    return found, _agreed((known / sizes[:, None])[errors < EXACT])


def _least_squares(known: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """A of weighted least squares, nearly that of least norm."""
    known, rows = known * weights[:, None], rows * weights[:, None]
    normal = known.T @ known
    normal.diagonal().add_(1e-12 * normal.trace() / len(normal) + 1e-300)
    found: Tensor = torch.linalg.solve(normal, known.T @ rows)
    return found


def _agreed(explained: Tensor) -> Tensor:
    """Which unknowns the explained rows determine, any one row left out."""
    while len(explained):
        basis, sizes, across = torch.linalg.svd(explained, full_matrices=False)
        kept = sizes > EXACT * sizes[0]
        alone = basis[:, kept].square().sum(dim=1) > ALONE
        if not alone.any():
            determined: Tensor = across[kept].square().sum(dim=0) > 1 - 1e-6
            return determined
        explained = explained[~alone]
    return torch.zeros(explained.shape[1], dtype=torch.bool)
