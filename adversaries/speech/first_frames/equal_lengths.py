"""Separation of utterances of equal length from their mixtures, by their normalisation."""

import torch
from torch import Tensor

from adversaries.speech.first_frames.overlapping import Fit

STARTS = 64
"""Number of random starts for each utterance."""


def separated(fit: Fit, rng: torch.Generator) -> list[Tensor]:
    """Find the normalised utterances of an affine family.

    Solves for X = M + sum_k a_k V_k with variance 1 in each of F values: F equations for a. The
    solutions lie on a sphere, because V is orthonormal, and Gauss-Newton starts from random points
    of it. There is no such sphere, and no solution, if the features were not normalised.

    Args:
        fit: The frames M and the free directions V.
        rng: Draws the starts.

    Returns:
        Utterances (T, F); at most as many as the family mixes.
    """
    mean, basis = fit.frames, fit.free
    square = mean.numel() - float(mean.square().sum())
    if not square > 0:
        return []
    radius, count = square**0.5, 1 + len(basis)
    points = torch.randn(STARTS * count, len(basis), generator=rng, dtype=mean.dtype)
    points *= radius / points.norm(dim=1, keepdim=True)
    for _ in range(40):
        slopes = _slopes(fit, points)
        off = _excess(fit, points)
        points = points - torch.linalg.lstsq(slopes, off[:, :, None]).solution[:, :, 0]
    wrong = _excess(fit, points).abs().amax(dim=1).nan_to_num(nan=torch.inf)
    found = list[Tensor]()
    for index in wrong.argsort().tolist():
        new = all(float((points[index] - one).norm()) > 0.01 * radius for one in found)
        if wrong[index] < 0.01 and new and len(found) < count:
            found.append(points[index])
    return [mean + torch.einsum("k,ktf->tf", point, basis) for point in found]


def _excess(fit: Fit, points: Tensor) -> Tensor:
    """Variance of each value minus 1, (S, F), at points (S, k)."""
    frames = fit.frames + torch.einsum("sk,ktf->stf", points, fit.free)
    return frames.square().mean(dim=1) - 1


def _slopes(fit: Fit, points: Tensor) -> Tensor:
    """Derivative of `_excess`, (S, F, k)."""
    frames = fit.frames + torch.einsum("sk,ktf->stf", points, fit.free)
    return 2 * torch.einsum("stf,ktf->sfk", frames, fit.free) / frames.shape[1]
