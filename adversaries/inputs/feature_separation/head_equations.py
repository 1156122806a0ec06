"""The equations between a head's gradient and the features behind it, and their solution."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.linalg import lstsq, svd

from adversaries.inputs.feature_separation.damped_steps import (
    Product,
    Solver,
    by_conjugate_gradients,
    directly,
)

SAME = 1e-14
"""Relative change of the fixed point at which it ends."""

PERTURBATIONS = (0.1, 0.3, 1.0, 0.03) * 3
"""How far examples of the same label are set apart at each start, in norms of a row."""

SETTLED, SMALL = 1e-3, 1e-6
"""Relative fall of the residual below which a search ends, once it is below the second."""

CLOSE = 1e-7
"""Residual below which little but rounding is left."""

DENSE = 24
"""Examples up to which a step is solved directly, and not by conjugate gradients."""

INVERTED = 48
"""Examples up to which the expected error of a solution is computed."""

ROUNDED = 6e-8
"""Residual that rounding to float32 leaves; a smaller one is luck."""

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
            squares for weight and bias.
        expected_error: The largest standard error of an example's features, relative to them, that
            least squares give with this residual, or with rounding; NaN for more than `INVERTED`
            examples.
    """

    features: Tensor
    labels: Tensor
    errors: Tensor
    residual: float
    expected_error: float


class HeadEquations:
    """E' M = Q and sum E = db in the unknown M, for given labels.

    With cross-entropy over a softmax the gradient of the head is dW = E' H and db = sum E, where
    E = (softmax(H W' + b) - Y) / B has a row for each example. The rows of H lie in the row space
    of dW, so that H = M R with an orthonormal basis R (B, d) and an unknown M (B, B), and
    Q = dW R'. There are C (B + 1) equations for B^2 unknowns.

    Args:
        weight_gradient: dW (C, d) float64.
        bias_gradient: db (C,), None for a head without bias.
        weight: W (C, d).
        bias: b (C,), or None.
        size: The number of examples B.
    """

    def __init__(
        self,
        weight_gradient: Tensor,
        bias_gradient: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        size: int,
    ) -> None:
        _, _, right = svd(weight_gradient, full_matrices=False)
        self.size, self.basis = size, right[:size]
        self._target = weight_gradient @ self.basis.T
        self._logits = self.basis @ weight.T
        self._bias = torch.zeros(len(weight)).to(weight) if bias is None else bias
        self._sums = bias_gradient
        self._scale = float(self._target.norm())
        self._sum_scale = 1.0 if bias_gradient is None else float(bias_gradient.norm()) or 1.0

    def solutions(self, labels: Tensor, rng: torch.Generator, steps: int) -> Iterator[Separation]:
        """Solutions for a batch with these labels, one of each start.

        The fixed point of E -> M = lstsq(E', Q) -> E is exact for distinct labels and heads that
        are not too confident. It merges examples of the same label; these are then set apart at
        random, and Levenberg-Marquardt goes on from there.

        Args:
            labels: int64 (B,).
            rng: Source of randomness.
            steps: The largest number of steps of Levenberg-Marquardt from one start; 0: the fixed
                point alone.
        """
        onehot = nn.functional.one_hot(labels, len(self._bias)).to(self._bias)
        point = self._fixed_point(onehot)
        residual = self._residual(point, onehot)
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
        shares, errors = self._errors(point, onehot)
        expected = self._expected_error(point, shares, errors, residual)
        return Separation(point @ self.basis, labels, errors, residual, expected)

    def _expected_error(
        self, point: Tensor, shares: Tensor, errors: Tensor, residual: float
    ) -> float:
        """The standard error of M's rows, by the covariance of least squares: s^2 (J'J)^-1."""
        if self.size > INVERTED:
            return math.nan
        whole = self._matrix(partial(self._gauss_newton, point, shares, errors))
        factors, failed = torch.linalg.cholesky_ex(whole)
        if failed.any():
            return math.inf
        spread = torch.cholesky_inverse(factors).diagonal().view(point.shape).sum(dim=1)
        equations, unknowns = len(self._bias) * self.size, self.size**2
        free = max(1, equations - unknowns + (0 if self._sums is None else len(self._sums)))
        noise = max(residual, ROUNDED) / math.sqrt(free)
        return float((noise * spread.sqrt() / point.norm(dim=1)).max())

    def fixed_point_residual(self, labels: Tensor) -> float:
        """The residual of the fixed point with labels (B,), by which multisets can be compared."""
        onehot = nn.functional.one_hot(labels, len(self._bias)).to(self._bias)
        return self._residual(self._fixed_point(onehot), onehot)

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
            point = self._fixed_point(nn.functional.one_hot(labels, len(self._bias)).to(point))
        shares = (point @ self._logits + self._bias).softmax(dim=1)
        rest = shares.sum(dim=0) - self.size * self._sums
        found = list[int]()
        for _ in range(self.size):
            found.append(int(rest.argmax()))
            rest[found[-1]] -= 1
        return torch.tensor(sorted(found)).to(self.basis.device)

    def _fixed_point(self, onehot: Tensor, most: int = 100) -> Tensor:
        """Iterate E -> M from M = 0, with one row for all examples of a label; returns M (B, B)."""
        held = onehot.sum(dim=0).nonzero().flatten()
        counts, place = onehot.sum(dim=0)[held], torch.searchsorted(held, onehot.argmax(dim=1))
        targets = torch.eye(onehot.shape[1]).to(onehot)[held]
        point = torch.zeros(len(held), self.size).to(onehot)
        for _ in range(most):
            _, errors = self._errors(point, targets)
            found = lstsq((counts[:, None] * errors).T, self._target).solution
            if not found.isfinite().all():
                break
            change, point = float((found - point).norm() / found.norm()), found
            if change < SAME:
                break
        return point[place]

    def _errors(self, point: Tensor, onehot: Tensor) -> tuple[Tensor, Tensor]:
        """The probabilities P, and E = (P - Y) / B, both (B, C)."""
        shares = (point @ self._logits + self._bias).softmax(dim=1)
        return shares, (shares - onehot) / self.size

    def _missed(self, point: Tensor, errors: Tensor) -> tuple[Tensor, Tensor | None]:
        """By what the equations are missed, as shares of the gradients: (C, B) and (C,)."""
        matrix = (errors.T @ point - self._target) / self._scale
        if self._sums is None:
            return matrix, None
        return matrix, (errors.sum(dim=0) - self._sums) / self._sum_scale

    def _residual(self, point: Tensor, onehot: Tensor) -> float:
        matrix, sums = self._missed(point, self._errors(point, onehot)[1])
        found = math.hypot(float(matrix.norm()), 0.0 if sums is None else float(sums.norm()))
        return found if math.isfinite(found) else math.inf

    def _refined(self, point: Tensor, onehot: Tensor, steps: int) -> tuple[float, Tensor]:
        """Levenberg-Marquardt."""
        damping, residual = 1e-3, self._residual(point, onehot)
        for _ in range(steps):
            shares, errors = self._errors(point, onehot)
            slope = self._transposed(point, shares, errors, *self._missed(point, errors))
            product = partial(self._gauss_newton, point, shares, errors)
            solve: Solver
            if self.size <= DENSE:
                solve = partial(directly, self._matrix(product))
            else:
                solve = by_conjugate_gradients(product, self._blocks(point, shares, errors))
            better = False
            for _ in range(TRIES):
                if (step := solve(slope, damping)) is not None:
                    moved = point - step
                    reached = self._residual(moved, onehot)
                    if better := reached < residual:
                        break
                damping *= RISE
            if not better:
                break
            fell, residual, point = 1 - reached / residual, reached, moved
            damping /= SINK
            if fell < SETTLED and residual < SMALL:
                break
        return residual, point

    def _matrix(self, product: Product) -> Tensor:
        """J'J, (B^2, B^2)."""
        count = self.size**2
        units = torch.eye(count).to(self.basis).view(count, self.size, self.size)
        found: Tensor = torch.vmap(product)(units).reshape(count, count)
        return found

    def _gauss_newton(self, point: Tensor, shares: Tensor, errors: Tensor, step: Tensor) -> Tensor:
        """J'J times a step (B, B), in O(C B^2)."""
        change = self._through_softmax(shares, step @ self._logits)
        matrix = (change.T @ point + errors.T @ step) / self._scale
        sums = None if self._sums is None else change.sum(dim=0) / self._sum_scale
        return self._transposed(point, shares, errors, matrix, sums)

    def _transposed(
        self, point: Tensor, shares: Tensor, errors: Tensor, matrix: Tensor, sums: Tensor | None
    ) -> Tensor:
        """J' times changes of the equations, (C, B) and (C,); returns (B, B)."""
        by_errors = point @ matrix.T / self._scale
        if sums is not None:
            by_errors = by_errors + sums / self._sum_scale
        found: Tensor = errors @ matrix / self._scale
        found += self._through_softmax(shares, by_errors) @ self._logits.T
        return found

    def _through_softmax(self, shares: Tensor, change: Tensor) -> Tensor:
        """The change of E by a change of the logits, both (B, C); it is its own transpose."""
        weighted = shares * change
        found: Tensor = (weighted - shares * weighted.sum(dim=1, keepdim=True)) / self.size
        return found

    def _blocks(self, point: Tensor, shares: Tensor, errors: Tensor) -> Tensor:
        """The diagonal blocks of J'J, (B, B, B): one for each row of M."""
        mean = shares @ self._logits.T
        found = torch.empty(self.size, self.size, self.size).to(point)
        scale, sums = self._scale**2, 0.0 if self._sums is None else 1 / self._sum_scale**2
        unit = torch.eye(self.size).to(point)
        for row in range(self.size):
            change = shares[row][:, None] * (self._logits.T - mean[row]) / self.size  # (C, B)
            mixed = torch.outer(change.T @ errors[row], point[row]) / scale
            found[row] = change.T @ change * (float(point[row] @ point[row]) / scale + sums)
            found[row] += mixed + mixed.T + float(errors[row] @ errors[row]) / scale * unit
        return found


def with_one_changed(labels: Tensor, others: list[int]) -> Iterator[Tensor]:
    """Label multisets that differ from one in a single label.

    Args:
        labels: int64 (B,).
        others: Labels that may replace another one, the likeliest first.
    """
    for new in others:
        for old in sorted({*labels.tolist()}):
            if new != old:
                changed = labels.clone()
                changed[(changed == old).nonzero()[0]] = new
                yield changed.sort().values
