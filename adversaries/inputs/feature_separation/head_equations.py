"""The equations between a head's gradient and the features behind it, and their solution."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.linalg import lstsq

from adversaries.inputs.feature_separation.damped_steps import (
    Solver,
    by_conjugate_gradients,
    descend,
    directly,
)
from adversaries.inputs.feature_separation.reduced_head import ReducedHead
from adversaries.inputs.feature_separation.separation import Separation

SAME = 1e-12
"""Relative change of the fixed point at which it ends."""

PERTURBATIONS = (0.1, 0.3, 1.0, 0.03) * 3
"""How far examples of the same label are set apart at each start, in norms of a row."""

AGREED, ALIKE = 4, 1.02
"""Starts that end within this factor of the smallest residual, after which no more are tried: they
found the same minimum."""

CLOSE = 3e-7
"""Residual below which little but rounding is left."""

DENSE = 32
"""Examples up to which a step is solved directly, and not by conjugate gradients."""

INVERTED = 48
"""Examples up to which the expected error of a solution is computed."""

ROUNDED = 6e-8
"""Residual that rounding to float32 leaves; a smaller one is luck."""


@dataclass(frozen=True, slots=True)
class _State:
    """A point M (B, B), with P and E (B, C) there, and features below zero (B, d), if none may be.

    `below` is min(H, 0).
    """

    point: Tensor
    shares: Tensor
    errors: Tensor
    below: Tensor | None


def starts(labels: Tensor, residuals: list[float]) -> Iterator[float]:
    """How far to set repeated labels apart, for as many starts as are of use.

    Args:
        labels: int64 (B,).
        residuals: The caller appends the residual of each start.
    """
    for share in PERTURBATIONS if len({*labels.tolist()}) < len(labels) else PERTURBATIONS[:1]:
        yield share
        if sum(one <= ALIKE * min(residuals) for one in residuals) >= AGREED:
            return


def set_apart(point: Tensor, labels: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Move the rows of M (B, B) of repeated labels at random, by a share of the rows' norm."""
    repeated = (labels[:, None] == labels).sum(dim=1) > 1
    noise = torch.randn(point.shape, generator=rng).to(point)
    away = share * point.norm(dim=1).median() * noise / noise.norm(dim=1, keepdim=True)
    moved: Tensor = point + repeated[:, None] * away
    return moved


class HeadEquations:
    """E' M = Q and sum E = db in the unknown M, for given labels.

    With cross-entropy over a softmax the gradient of the head is dW = E' H and db = sum E, where
    E = (softmax(H W' + b) - Y) / B has a row for each example. The rows of H lie in the row space
    of dW, so that H = M R with an orthonormal basis R (B, d) and an unknown M (B, B), and
    Q = dW R'. There are C (B + 1) equations for B^2 unknowns. Only small terms of them distinguish
    examples of the same label, so that a search takes many steps. Features behind a ReLU also
    satisfy min(H, 0) = 0, about half of them with equality, and with these equations the search is
    short.

    Args:
        head: The head's gradient, in float64.
    """

    def __init__(self, head: ReducedHead) -> None:
        self.head = head

    def solutions(self, labels: Tensor, rng: torch.Generator, steps: int) -> Iterator[Separation]:
        """Solutions for a batch with these labels, one of each start.

        The fixed point of E -> M = lstsq(E', Q) -> E is exact for distinct labels and heads that
        are not too confident. Examples of the same label share a row of it; they are then set apart
        at random, and Levenberg-Marquardt goes on from there.

        Args:
            labels: int64 (B,).
            rng: Source of randomness.
            steps: The largest number of steps of Levenberg-Marquardt from one start; 0: the fixed
                point alone.
        """
        onehot, point = self.head.onehot(labels), self._fixed_point(labels)
        residual = self._residual(self._state(point, onehot))
        if residual < CLOSE or not steps:
            yield self._separation(point, labels, onehot, residual)
            return
        residuals = list[float]()
        for share in starts(labels, residuals):
            residual, found = self._refined(set_apart(point, labels, share, rng), onehot, steps)
            residuals.append(residual)
            yield self._separation(found, labels, onehot, residual)

    def _separation(
        self, point: Tensor, labels: Tensor, onehot: Tensor, residual: float
    ) -> Separation:
        _, errors = self._errors(point, onehot)
        return Separation(point @ self.head.basis, labels, errors, residual, self, point[0, :0])

    def expected_error(self, found: Separation) -> float:
        """The standard error of the rows of M by the covariance s^2 (J'J)^-1; see `Separation`."""
        at = self._state(found.features @ self.head.basis.T, self.head.onehot(found.labels))
        if self.head.size > INVERTED:
            return math.nan
        whole = self._matrix(at, torch.arange(self.head.size))
        factors, failed = torch.linalg.cholesky_ex(whole)
        if failed.any():
            return math.inf
        spread = torch.cholesky_inverse(factors).diagonal().view(at.point.shape).sum(dim=1)
        free = max(1, self.head.equations - self.head.size**2)
        noise = max(found.residual, ROUNDED) / math.sqrt(free)
        return float((noise * spread.sqrt() / at.point.norm(dim=1)).max())

    def targets(self, found: Separation) -> Tensor:
        """The labels (B,)."""
        return found.labels

    def notes(self, found: Separation) -> dict[str, float]:
        """Nothing."""
        return {}

    def fixed_point_residual(self, labels: Tensor) -> float:
        """The residual of the fixed point with labels (B,), by which multisets can be compared."""
        return self._residual(self._state(self._fixed_point(labels), self.head.onehot(labels)))

    def labels_by_bias(self, labels: Tensor | None) -> Tensor | None:
        """The label multiset that the bias's gradient shows: B db is the sum of P less the counts.

        Args:
            labels: Labels int64 (B,) whose fixed point gives P; None for P = softmax(b).

        Returns:
            Labels int64 (B,), sorted; None for a head without bias.
        """
        if self.head.sums is None:
            return None
        point = torch.zeros(self.head.size, self.head.size).to(self.head.basis)
        if labels is not None:
            point = self._fixed_point(labels)
        shares = (point @ self.head.logits + self.head.bias).softmax(dim=1)
        rest = shares.sum(dim=0) - self.head.size * self.head.sums
        found = list[int]()
        for _ in range(self.head.size):
            found.append(int(rest.argmax()))
            rest[found[-1]] -= 1
        return torch.tensor(sorted(found)).to(self.head.basis.device)

    def _fixed_point(self, labels: Tensor, most: int = 100) -> Tensor:
        """Iterate E -> M from M = 0, with one row for each label; returns M (B, B)."""
        distinct, which, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        onehot = self.head.onehot(distinct)
        point = torch.zeros(len(distinct), self.head.size).to(onehot)
        for _ in range(most):
            _, errors = self._errors(point, onehot)
            found = lstsq((counts[:, None] * errors).T, self.head.target).solution
            if not found.isfinite().all():
                break
            change, point = float((found - point).norm() / found.norm()), found
            if change < SAME:
                break
        return point[which]

    def _errors(self, point: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities P, and E = (P - Y) / B, both (B, C)."""
        shares = (point @ self.head.logits + self.head.bias).softmax(dim=1)
        return shares, (shares - onehot) / self.head.size

    def _state(self, point: Tensor, onehot: Tensor) -> _State:
        below = (point @ self.head.basis).clamp(max=0) if self.head.nonnegative else None
        return _State(point, *self._errors(point, onehot), below)

    def _missed(self, at: _State) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """By what the equations are missed, as shares of their scales: (C, B), (C,) and (B, d)."""
        matrix = (at.errors.T @ at.point - self.head.target) / self.head.scale
        sums = None
        if self.head.sums is not None:
            sums = (at.errors.sum(dim=0) - self.head.sums) / self.head.sum_scale
        return matrix, sums, None if at.below is None else at.below / self.head.below_scale

    def _residual(self, at: _State) -> float:
        found = math.hypot(*(float(one.norm()) for one in self._missed(at) if one is not None))
        return found if math.isfinite(found) else math.inf

    def _refined(self, point: Tensor, onehot: Tensor, steps: int) -> tuple[float, Tensor]:
        """Levenberg-Marquardt.

        Examples of the same label have nearly the same errors, so that their rows of M have a block
        together where steps are solved by conjugate gradients.
        """
        every = torch.arange(self.head.size)
        _, which, counts = torch.unique(
            onehot.argmax(dim=1), return_inverse=True, return_counts=True
        )
        alike = [
            torch.stack([every[which == one] for one in (counts == count).nonzero()[:, 0]])
            for count in sorted({*counts.tolist()})
        ]

        def linearised(point: Tensor) -> tuple[Solver, Tensor]:
            at = self._state(point, onehot)
            slope = self._transposed(at, *self._missed(at))
            if self.head.size <= DENSE:
                return partial(directly, self._matrix(at, every)), slope
            blocks = [(own, torch.stack([self._matrix(at, one) for one in own])) for own in alike]
            return by_conjugate_gradients(partial(self._gauss_newton, at), blocks), slope

        def residual(point: Tensor) -> float:
            return self._residual(self._state(point, onehot))

        return descend(point, residual, linearised, steps)

    def _matrix(self, at: _State, rows: Tensor) -> Tensor:
        """J'J for some rows of M (m,), (m B, m B).

        The equations of class c are missed by sum_n E_nc M_n - Q_c, whose derivative by M_n is
        E_nc I + M_n G_nc' with G_nc = dE_nc / dM_n.
        """
        size, count, unit = self.head.size, len(rows), torch.eye(self.head.size).to(at.point)
        point, shares, errors = at.point[rows], at.shares[rows], at.errors[rows]
        mean = shares @ self.head.logits.T
        slopes = shares.T[:, :, None] * (self.head.logits.T[:, None] - mean) / size  # (C, m, B)
        flat = slopes.flatten(1)
        inner = point @ point.T / self.head.scale**2
        if self.head.sums is not None:
            inner = inner + 1 / self.head.sum_scale**2
        found = (flat.T @ flat).view(count, size, count, size) * inner[:, None, :, None]
        mixed = torch.einsum("nc,cmk,mj->njmk", errors, slopes, point) / self.head.scale**2
        found += mixed + mixed.permute(2, 3, 0, 1)
        alike = errors @ errors.T / self.head.scale**2
        found += alike[:, None, :, None] * unit[None, :, None, :]
        if at.below is not None:
            for row, below in enumerate(at.below[rows]):
                basis = self.head.basis[:, below < 0] / self.head.below_scale
                found[row, :, row, :] += basis @ basis.T
        matrix: Tensor = found.view(count * size, count * size)
        return matrix

    def _gauss_newton(self, at: _State, step: Tensor) -> Tensor:
        """J'J times a step (B, B), in O(C B^2), and O(d B^2) for features below zero."""
        change = self._through_softmax(at.shares, step @ self.head.logits)
        matrix = (change.T @ at.point + at.errors.T @ step) / self.head.scale
        sums = None if self.head.sums is None else change.sum(dim=0) / self.head.sum_scale
        below = None
        if at.below is not None:
            below = (step @ self.head.basis) * (at.below < 0) / self.head.below_scale
        return self._transposed(at, matrix, sums, below)

    def _transposed(
        self, at: _State, matrix: Tensor, sums: Tensor | None, below: Tensor | None
    ) -> Tensor:
        """J' times changes of the equations, (C, B), (C,) and (B, d); returns (B, B)."""
        by_errors = at.point @ matrix.T / self.head.scale
        if sums is not None:
            by_errors = by_errors + sums / self.head.sum_scale
        found: Tensor = at.errors @ matrix / self.head.scale
        found += self._through_softmax(at.shares, by_errors) @ self.head.logits.T
        if below is not None:
            found += below @ self.head.basis.T / self.head.below_scale
        return found

    def _through_softmax(self, shares: Tensor, change: Tensor) -> Tensor:
        """The change of E by a change of the logits, both (B, C); it is its own transpose."""
        weighted = shares * change
        found: Tensor = (weighted - shares * weighted.sum(dim=1, keepdim=True)) / self.head.size
        return found
