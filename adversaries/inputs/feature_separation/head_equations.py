"""The equations between a head's gradient and the features behind it, and their solution."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.linalg import lstsq, svd

from adversaries.inputs.feature_separation.damped_steps import (
    Solver,
    by_conjugate_gradients,
    directly,
)

SAME = 1e-12
"""Relative change of the fixed point at which it ends."""

PERTURBATIONS = (0.1, 0.3, 1.0, 0.03) * 3
"""How far examples of the same label are set apart at each start, in norms of a row."""

SETTLED, SMALL = 1e-3, 1e-6
"""Relative fall of the residual below which a search ends, once it is below the second."""

CLOSE = 3e-7
"""Residual below which little but rounding is left."""

DENSE = 32
"""Examples up to which a step is solved directly, and not by conjugate gradients."""

INVERTED = 48
"""Examples up to which the expected error of a solution is computed."""

ROUNDED = 6e-8
"""Residual that rounding to float32 leaves; a smaller one is luck."""

BELOW = 1e-2
"""Weight of negative features, as shares of the norm of all, beside the equations."""

TRIES, RISE, SINK = 12, 4.0, 5.0
"""Levenberg-Marquardt: tries of a step, and the damping's factor after a failed one, its divisor
after a successful one."""


@dataclass(frozen=True, slots=True)
class Separation:
    """One solution.

    Attributes:
        features: The features of each example (B, d), in the order of `labels`.
        labels: The assumed labels (B,).
        errors: The part of each example in the gradient of the logits (B, classes).
        residual: By what the equations are missed, as a share of the gradient: root of the sum of
            squares for weight, bias and, times `BELOW`, features that must not be negative.
        equations: What it solves.
    """

    features: Tensor
    labels: Tensor
    errors: Tensor
    residual: float
    equations: "HeadEquations"

    @property
    def expected_error(self) -> float:
        """The largest standard error of an example's features, relative to them.

        It is what least squares give with this residual, or with rounding. NaN for more than
        `INVERTED` examples.
        """
        return self.equations.expected_error(self)


@dataclass(frozen=True, slots=True)
class _State:
    """A point M (B, B), with P and E (B, C) there, and features below zero (B, d), if none may be.

    `below` is min(H, 0).
    """

    point: Tensor
    shares: Tensor
    errors: Tensor
    below: Tensor | None


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
        weight_gradient: dW (C, d) float64.
        bias_gradient: db (C,), None for a head without bias.
        weight: W (C, d).
        bias: b (C,), or None.
        size: The number of examples B.
        nonnegative: Whether no feature can be negative.
    """

    def __init__(
        self,
        weight_gradient: Tensor,
        bias_gradient: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        size: int,
        nonnegative: bool = False,
    ) -> None:
        _, _, right = svd(weight_gradient, full_matrices=False)
        self.size, self.basis = size, right[:size]
        self._target = weight_gradient @ self.basis.T
        self._logits = self.basis @ weight.T
        self._bias = torch.zeros(len(weight)).to(weight) if bias is None else bias
        self._sums = bias_gradient
        self._scale = float(self._target.norm())
        self._sum_scale = 1.0 if bias_gradient is None else float(bias_gradient.norm()) or 1.0
        # Rows of E with distinct labels are almost orthogonal, of norm 1 / B: |H| is about B |dW|.
        self._below_scale = size * self._scale / BELOW
        self._nonnegative = nonnegative

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
        onehot, point = self._onehot(labels), self._fixed_point(labels)
        residual = self._residual(self._state(point, onehot))
        if residual < CLOSE or not steps:
            yield self._separation(point, labels, onehot, residual)
            return
        norm = point.norm(dim=1).median()
        repeated = (labels[:, None] == labels).sum(dim=1) > 1
        for share in PERTURBATIONS if repeated.any() else PERTURBATIONS[:1]:
            noise = torch.randn(point.shape, generator=rng).to(point)
            away = share * norm * noise / noise.norm(dim=1, keepdim=True)
            residual, found = self._refined(point + repeated[:, None] * away, onehot, steps)
            yield self._separation(found, labels, onehot, residual)

    def _separation(
        self, point: Tensor, labels: Tensor, onehot: Tensor, residual: float
    ) -> Separation:
        _, errors = self._errors(point, onehot)
        return Separation(point @ self.basis, labels, errors, residual, self)

    def expected_error(self, found: Separation) -> float:
        """The standard error of the rows of M by the covariance s^2 (J'J)^-1; see `Separation`."""
        at = self._state(found.features @ self.basis.T, self._onehot(found.labels))
        if self.size > INVERTED:
            return math.nan
        whole = self._matrix(at)
        factors, failed = torch.linalg.cholesky_ex(whole)
        if failed.any():
            return math.inf
        spread = torch.cholesky_inverse(factors).diagonal().view(at.point.shape).sum(dim=1)
        equations, unknowns = len(self._bias) * self.size, self.size**2
        free = max(1, equations - unknowns + (0 if self._sums is None else len(self._sums)))
        noise = max(found.residual, ROUNDED) / math.sqrt(free)
        return float((noise * spread.sqrt() / at.point.norm(dim=1)).max())

    def fixed_point_residual(self, labels: Tensor) -> float:
        """The residual of the fixed point with labels (B,), by which multisets can be compared."""
        return self._residual(self._state(self._fixed_point(labels), self._onehot(labels)))

    def labels_by_bias(self, labels: Tensor | None) -> Tensor | None:
        """The label multiset that the bias's gradient shows: B db is the sum of P less the counts.

        Args:
            labels: Labels int64 (B,) whose fixed point gives P; None for P = softmax(b).

        Returns:
            Labels int64 (B,), sorted; None for a head without bias.
        """
        if self._sums is None:
            return None
        point = torch.zeros(self.size, self.size).to(self.basis)
        if labels is not None:
            point = self._fixed_point(labels)
        shares = (point @ self._logits + self._bias).softmax(dim=1)
        rest = shares.sum(dim=0) - self.size * self._sums
        found = list[int]()
        for _ in range(self.size):
            found.append(int(rest.argmax()))
            rest[found[-1]] -= 1
        return torch.tensor(sorted(found)).to(self.basis.device)

    def _onehot(self, labels: Tensor) -> Tensor:
        return nn.functional.one_hot(labels, len(self._bias)).to(self._bias)

    def _fixed_point(self, labels: Tensor, most: int = 100) -> Tensor:
        """Iterate E -> M from M = 0, with one row for each label; returns M (B, B)."""
        distinct, which, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        onehot = self._onehot(distinct)
        point = torch.zeros(len(distinct), self.size).to(onehot)
        for _ in range(most):
            _, errors = self._errors(point, onehot)
            found = lstsq((counts[:, None] * errors).T, self._target).solution
            if not found.isfinite().all():
                break
            change, point = float((found - point).norm() / found.norm()), found
            if change < SAME:
                break
        return point[which]

    def _errors(self, point: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities P, and E = (P - Y) / B, both (B, C)."""
        shares = (point @ self._logits + self._bias).softmax(dim=1)
        return shares, (shares - onehot) / self.size

    def _state(self, point: Tensor, onehot: Tensor) -> _State:
        below = (point @ self.basis).clamp(max=0) if self._nonnegative else None
        return _State(point, *self._errors(point, onehot), below)

    def _missed(self, at: _State) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """By what the equations are missed, as shares of their scales: (C, B), (C,) and (B, d)."""
        matrix = (at.errors.T @ at.point - self._target) / self._scale
        sums = None if self._sums is None else (at.errors.sum(dim=0) - self._sums) / self._sum_scale
        return matrix, sums, None if at.below is None else at.below / self._below_scale

    def _residual(self, at: _State) -> float:
        found = math.hypot(*(float(one.norm()) for one in self._missed(at) if one is not None))
        return found if math.isfinite(found) else math.inf

    def _refined(self, point: Tensor, onehot: Tensor, steps: int) -> tuple[float, Tensor]:
        """Levenberg-Marquardt."""
        damping, at = 1e-3, self._state(point, onehot)
        residual = self._residual(at)
        for _ in range(steps):
            slope = self._transposed(at, *self._missed(at))
            product = partial(self._gauss_newton, at)
            solve: Solver
            if self.size <= DENSE:
                solve = partial(directly, self._matrix(at))
            else:
                solve = by_conjugate_gradients(product, self._blocks(at))
            better = False
            for _ in range(TRIES):
                if (step := solve(slope, damping)) is not None:
                    moved = self._state(at.point - step, onehot)
                    reached = self._residual(moved)
                    if better := reached < residual:
                        break
                damping *= RISE
            if not better:
                break
            fell, residual, at = 1 - reached / residual, reached, moved
            damping /= SINK
            if fell < SETTLED and residual < SMALL:
                break
        return residual, at.point

    def _matrix(self, at: _State) -> Tensor:
        """J'J, (B^2, B^2).

        The equations of class c are missed by sum_n E_nc M_n - Q_c, whose derivative by M_n is
        E_nc I + M_n G_nc' with G_nc = dE_nc / dM_n.
        """
        size, unit = self.size, torch.eye(self.size).to(at.point)
        mean = at.shares @ self._logits.T
        slopes = at.shares.T[:, :, None] * (self._logits.T[:, None] - mean) / size  # (C, B, B)
        flat = slopes.flatten(1)
        inner = at.point @ at.point.T / self._scale**2
        if self._sums is not None:
            inner = inner + 1 / self._sum_scale**2
        found = (flat.T @ flat).view(size, size, size, size) * inner[:, None, :, None]
        mixed = torch.einsum("nc,cmk,mj->njmk", at.errors, slopes, at.point) / self._scale**2
        found += mixed + mixed.permute(2, 3, 0, 1)
        alike = at.errors @ at.errors.T / self._scale**2
        found += alike[:, None, :, None] * unit[None, :, None, :]
        if at.below is not None:
            for row, below in enumerate(at.below):
                basis = self.basis[:, below < 0] / self._below_scale
                found[row, :, row, :] += basis @ basis.T
        matrix: Tensor = found.view(size**2, size**2)
        return matrix

    def _gauss_newton(self, at: _State, step: Tensor) -> Tensor:
        """J'J times a step (B, B), in O(C B^2), and O(d B^2) for features below zero."""
        change = self._through_softmax(at.shares, step @ self._logits)
        matrix = (change.T @ at.point + at.errors.T @ step) / self._scale
        sums = None if self._sums is None else change.sum(dim=0) / self._sum_scale
        below = None
        if at.below is not None:
            below = (step @ self.basis) * (at.below < 0) / self._below_scale
        return self._transposed(at, matrix, sums, below)

    def _transposed(
        self, at: _State, matrix: Tensor, sums: Tensor | None, below: Tensor | None
    ) -> Tensor:
        """J' times changes of the equations, (C, B), (C,) and (B, d); returns (B, B)."""
        by_errors = at.point @ matrix.T / self._scale
        if sums is not None:
            by_errors = by_errors + sums / self._sum_scale
        found: Tensor = at.errors @ matrix / self._scale
        found += self._through_softmax(at.shares, by_errors) @ self._logits.T
        if below is not None:
            found += below @ self.basis.T / self._below_scale
        return found

    def _through_softmax(self, shares: Tensor, change: Tensor) -> Tensor:
        """The change of E by a change of the logits, both (B, C); it is its own transpose."""
        weighted = shares * change
        found: Tensor = (weighted - shares * weighted.sum(dim=1, keepdim=True)) / self.size
        return found

    def _blocks(self, at: _State) -> Tensor:
        """The diagonal blocks of J'J, (B, B, B): one for each row of M."""
        mean = at.shares @ self._logits.T
        found = torch.empty(self.size, self.size, self.size).to(at.point)
        scale, sums = self._scale**2, 0.0 if self._sums is None else 1 / self._sum_scale**2
        unit = torch.eye(self.size).to(at.point)
        for row in range(self.size):
            own, errors = at.point[row], at.errors[row]
            change = at.shares[row][:, None] * (self._logits.T - mean[row]) / self.size  # (C, B)
            mixed = torch.outer(change.T @ errors, own) / scale
            found[row] = change.T @ change * (float(own @ own) / scale + sums)
            found[row] += mixed + mixed.T + float(errors @ errors) / scale * unit
            if at.below is not None:
                basis = self.basis[:, at.below[row] < 0]
                found[row] += basis @ basis.T / self._below_scale**2
        return found
