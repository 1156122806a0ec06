"""Least-squares frames whose overlapping windows lie in a known row space.

Window t is (x_{t-c}, ..., x_{t+c}, 1), with zeros for frames beyond both ends. The sum of their
squared distances from the space is a quadratic form that couples a frame with 2c others on each
side. So frames are eliminated one after the other, as in a block Cholesky factorisation, and one
pass gives the misfit for every number of frames.

Utterances of equal length fit equally well in any mixture; their normalisation separates them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

FREE = 1e-9
"""Share of the largest curvature below which a direction is free."""


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Best frames (T, F), and orthonormal directions (k, T, F) that do not change the misfit."""

    frames: Tensor
    free: Tensor


class Chain:
    """Least-squares fits for all numbers of frames up to `longest`.

    Args:
        away: (D + 1, D + 1) float64, symmetric and positive semidefinite: the squared distance of a
            window w from the space is (w, 1)' away (w, 1), with D = (2 context + 1) features.
        features: Number F of values of a frame.
        context: Number c of frames on either side of a window.
        longest: The largest number of frames.

    Attributes:
        misfits: (longest,) float64; at T - 1 the root of the least sum of squared distances of T
            windows, relative to that of T frames of zeros.
    """

    def __init__(self, away: Tensor, features: int, context: int, longest: int) -> None:
        self.features, self.context = features, context
        width, one = 2 * context * features, slice(features)
        state = away.new_zeros(width + 1, width + 1)
        self.rules: list[Tensor] = []
        self.ends: list[Tensor] = []
        misfits: list[float] = []
        for count in range(1, longest + 1):
            form = away.clone()
            # A window consists of the frames of the previous state and one more.
            form[:width, :width] += state[:-1, :-1]
            form[:width, -1] += state[:-1, -1]
            form[-1, :width] += state[-1, :-1]
            form[-1, -1] += state[-1, -1]
            # Otherwise rounding errors grow until the form is no longer positive definite.
            form = (form + form.T) / 2
            state = form[features:, features:]
            if count > context:
                rule = -torch.cholesky_solve(form[one, features:], _root(form[one, one]))
                self.rules.append(rule)
                state = state + form[features:, one] @ rule
            # Frames beyond both ends are zero.
            first = max(0, context - count) * features
            known = [*range(first, context * features), width]
            self.ends.append(state[known][:, known])
            misfits.append(_least(self.ends[-1]) / (count * float(away[-1, -1])))
        self.misfits = torch.tensor(misfits, dtype=torch.float64).clamp(min=0).sqrt()

    def fit(self, count: int) -> Fit:
        """The best fit with `count` frames; of equally good ones that of the least norm."""
        form = self.ends[count - 1]
        curvature, directions = torch.linalg.eigh(form[:-1, :-1])
        costly = curvature > FREE * curvature[-1]
        steep = directions[:, costly]
        last = -steep @ ((steep.T @ form[:-1, -1]) / curvature[costly])
        best = self._back(last[None], 1.0, count)[0]
        flat = self._back(directions[:, ~costly].T, 0.0, count)
        if len(flat):
            flat = torch.linalg.qr(flat.flatten(1).T).Q.T.reshape(flat.shape)
            best = best - torch.einsum("ktf,sg,ksg->tf", flat, best, flat)
        return Fit(best, flat)

    def _back(self, last: Tensor, constant: float, count: int) -> Tensor:
        """Back substitution: all frames (k, T, F) from the last `context` ones, (k, context F)."""
        frames, width = last, 2 * self.context * self.features
        behind = last.new_zeros(len(last), self.context * self.features)
        for rule in reversed(self.rules[: max(0, count - self.context)]):
            following = torch.cat([frames, behind], dim=1)[:, :width]
            frame = following @ rule[:, :-1].T + constant * rule[:, -1]
            frames = torch.cat([frame, frames], dim=1)
        return frames.view(len(last), count, self.features)


def _root(form: Tensor) -> Tensor:
    """The Cholesky factor of a form that may be singular, slightly regularised."""
    floor = 1e-13 * form.diagonal().mean()
    root: Tensor = torch.linalg.cholesky(form + floor * torch.eye(len(form), dtype=form.dtype))
    return root


def _least(form: Tensor) -> float:
    """The minimum over x of (x, 1)' form (x, 1)."""
    half = torch.linalg.solve_triangular(_root(form[:-1, :-1]), form[:-1, -1:], upper=False)
    return float(form[-1, -1] - half.square().sum())


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
        off, slopes = _excess(fit, points)
        points = points - torch.linalg.lstsq(slopes, off[:, :, None]).solution[:, :, 0]
    wrong = _excess(fit, points)[0].abs().amax(dim=1).nan_to_num(nan=torch.inf)
    found = list[Tensor]()
    for index in wrong.argsort().tolist():
        new = all(float((points[index] - one).norm()) > 0.01 * radius for one in found)
        if wrong[index] < 0.01 and new and len(found) < count:
            found.append(points[index])
    return [mean + torch.einsum("k,ktf->tf", point, basis) for point in found]


def _excess(fit: Fit, points: Tensor) -> tuple[Tensor, Tensor]:
    """Variance of each value minus 1, (S, F), at points (S, k), and its derivative (S, F, k)."""
    frames = fit.frames + torch.einsum("sk,ktf->stf", points, fit.free)
    slopes = 2 * torch.einsum("stf,ktf->sfk", frames, fit.free) / frames.shape[1]
    return frames.square().mean(dim=1) - 1, slopes
