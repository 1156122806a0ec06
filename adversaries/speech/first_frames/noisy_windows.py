"""Maximum-likelihood frames for a noisy gradient, by nonlinear least squares.

The model is [dW | db] = D' W(X) + noise: W(X) are the windows (t, (2c + 1) F + 1) of all frames X
with a 1 appended, and D (t, units) are the coefficients of their sum. For given X the best D is
linear, so it is eliminated (variable projection; Golub and Pereyra, 1973). X is found by
Gauss-Newton with Kaufman's derivative and Levenberg's damping. Under white noise this X is the most
likely one. `overlapping` is biased in comparison, because it searches a perturbed row space and
gives all its directions the same weight.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from fedsim.adversary import Job

MOST = 320
"""The largest number of frames that are refined. The normal equations for 320 x 26 values take half
a GiB, and a step needs about three times that."""

CONVERGED = 1e-4
"""Share by which a step must lower the sum of squares; else the refinement ends."""

LEAST, DAMPED, HOPELESS = 1e-9, 1e-3, 1e3
"""Least, initial and largest damping, as a share of the mean curvature. The least one keeps the
quadratic form positive definite; beyond the largest, no step helps."""


class _Windows:
    """Windows of several utterances, concatenated with `context` frames of zeros between two."""

    def __init__(self, lengths: Sequence[int], context: int, features: int) -> None:
        self.context, self.seen, self.features = context, 2 * context + 1, features
        begins = [sum(lengths[:i]) + i * context for i in range(len(lengths))]
        parts = [torch.arange(n) + at for n, at in zip(lengths, begins, strict=True)]
        self.spots, self.line = torch.cat(parts), begins[-1] + lengths[-1]

    def of(self, frames: Tensor) -> Tensor:
        """Windows (t, (2c + 1) F + 1) of frames (t, F), with a 1 appended."""
        line = frames.new_zeros(self.line + 2 * self.context, self.features)
        line[self.spots + self.context] = frames
        seen = line.unfold(0, self.seen, 1)[self.spots].transpose(1, 2).flatten(1)
        return torch.cat([seen, frames.new_ones(len(frames), 1)], dim=1)

    def gather(self, pulls: Tensor) -> Tensor:
        """Adjoint of `of`: sum the windows' parts for each frame, (t, (2c + 1) F) -> (t, F)."""
        line = pulls.new_zeros(self.line + 2 * self.context, self.features)
        for place, own in enumerate(pulls.view(len(pulls), self.seen, -1).unbind(1)):
            line[self.spots + place] += own
        return line[self.spots + self.context]

    def curvature(self, mixed: Tensor, away: Tensor) -> Tensor:
        """Coupling of frames by their shared windows, as a matrix (t F, t F).

        Args:
            mixed: Weights of pairs of windows, (t, t).
            away: Projector off a space of windows, ((2c + 1) F, ...).
        """
        line = mixed.new_zeros(self.line, self.line)
        line[self.spots[:, None], self.spots] = mixed
        pairs = functional.pad(line, (self.context,) * 4).unfold(0, self.seen, 1)
        pairs = pairs.unfold(1, self.seen, 1)[self.spots][:, self.spots].flip(2, 3)
        places = away.view(self.seen, self.features, self.seen, self.features).transpose(1, 2)
        count, size = len(self.spots), self.features
        both = pairs.reshape(count**2, -1) @ places.reshape(self.seen**2, -1)
        form = both.view(count, count, size, size).transpose(1, 2).reshape(count * size, -1)
        return (form + form.T) / 2


def refined(
    rows: Tensor, utterances: Sequence[Tensor], context: int, steps: int, job: Job
) -> tuple[list[Tensor], float]:
    """Least-squares utterances for noisy gradient rows, by Gauss-Newton from initial utterances.

    Args:
        rows: The layer's gradient with the bias as last column, (units, (2c + 1) F + 1) float64.
        utterances: Initial frames, (T, F) float64 each.
        context: Number c of frames on either side of a window.
        steps: The largest number of steps.
        job: The attack's job.

    Returns:
        Utterances (T, F) float64, and the root mean square residual per degree of freedom. The
        latter estimates the standard deviation of the noise if the utterances are correct.
    """
    features = utterances[0].shape[1]
    windows = _Windows([len(one) for one in utterances], context, features)
    frames = torch.cat(list(utterances))
    now, damping = _Explained(rows, windows.of(frames)), DAMPED
    for _ in job.steps(steps):
        job.progress(job.iterations, now.left)
        form = windows.curvature(now.mixed @ now.mixed.T, now.away()[:-1, :-1])
        pull = windows.gather((now.mixed @ now.rest)[:, :-1]).view(-1, 1)
        scale, before = float(form.diagonal().mean()), now.left
        while damping < HOPELESS:
            damped = form.clone()
            damped.diagonal().add_(damping * scale)
            step = torch.cholesky_solve(pull, torch.linalg.cholesky(damped)).view_as(frames)
            tried = _Explained(rows, windows.of(frames + step))
            if tried.left < before:
                frames, now, damping = frames + step, tried, max(LEAST, damping / 10)
                break
            damping *= 10
        if not now.left < (1 - CONVERGED) * before:
            break
    free = rows.numel() - len(frames) * (len(rows) + features)
    found = torch.split(frames, [len(one) for one in utterances])
    return list(found), (now.left / max(1, free)) ** 0.5


class _Explained:
    """Least-squares fit of rows (units, d) by windows (t, d)."""

    def __init__(self, rows: Tensor, windows: Tensor) -> None:
        self.space, root = torch.linalg.qr(windows.T)
        inside = rows @ self.space
        self.mixed = torch.linalg.solve_triangular(root, inside.T, upper=True)
        self.rest = rows - inside @ self.space.T
        self.left = float(self.rest.square().sum())

    def away(self) -> Tensor:
        """The projector on the complement of the windows' span, (d, d)."""
        inside = self.space @ self.space.T
        found: Tensor = torch.eye(len(inside), dtype=inside.dtype) - inside
        return found
