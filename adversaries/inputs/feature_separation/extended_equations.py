"""The equations of a head's gradient with other unknowns beside the features."""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.linalg import lstsq

from adversaries.inputs.feature_separation.damped_steps import Solver, descend, directly
from adversaries.inputs.feature_separation.head_equations import (
    CLOSE,
    INVERTED,
    ROUNDED,
    SAME,
    set_apart,
    starts,
)
from adversaries.inputs.feature_separation.reduced_head import ReducedHead
from adversaries.inputs.feature_separation.separation import Separation

Beside = Literal["nothing", "factors", "smoothing", "split"]
"""What is unknown beside the features."""


class ExtendedEquations:
    """The head's equations over K steps of SGD, clipped or with smoothed labels.

    Step k has the weights W_k and b_k, with W_0 = W and W_(k + 1) = W_k - lr E_k' H. The mean
    gradient is dW = sum_k E_k' H / K and db = sum_k sum E_k / K, where

        E_k = diag(S_k) (softmax(H W_k' + b_k) - T) K / B.

    S (B, K) says in which step an example is, and how much it counts there. All rows of H lie in
    the row space of dW, so that H = M R as in `HeadEquations`. Unknown beside M can be

    - `factors`: one step, and S is any column. DP-SGD without noise gives each example's gradient a
      factor of its own; c_n = S_n.
    - `smoothing`: T = (1 - s) Y + s / C with one unknown s.
    - `split`: S is any matrix whose rows add up to one. It should be zeros and ones, so that
      entries outside of [0, 1] and unequal steps are equations, too.

    Levenberg-Marquardt solves for all of them at once, by the dense Jacobian.

    Args:
        head: The head's gradient, in float64.
        beside: What is unknown beside the features.
        weights: S (B, K), if it is known; ones by default.
        lr: The learning rate of the steps.
        pull: The weight of the equations for `split`.
    """

    def __init__(
        self,
        head: ReducedHead,
        beside: Beside = "nothing",
        *,
        weights: Tensor | None = None,
        lr: float = 0.0,
        pull: float = 0.0,
    ) -> None:
        self.head, self.beside, self.lr, self.pull = head, beside, lr, pull
        self.weights = torch.ones(head.size, 1).to(head.bias) if weights is None else weights

    def solutions(self, labels: Tensor, rng: torch.Generator, steps: int) -> Iterator[Separation]:
        """Solutions for a batch with these labels, one of each start; one step of SGD."""
        point, onehot = self.fixed_point(labels), self.head.onehot(labels)
        residual = self.residual(point, onehot)
        if residual < CLOSE or not steps:
            yield self.separation(point, labels, residual)
            return
        residuals = list[float]()
        for share in starts(labels, residuals):
            residual, found = self.refined(self.apart(point, labels, share, rng), labels, steps)
            residuals.append(residual)
            yield self.separation(found, labels, residual)

    def apart(self, point: Tensor, labels: Tensor, share: float, rng: torch.Generator) -> Tensor:
        """A point with the features of examples of the same label moved at random."""
        features, rest = self._parts(point)
        return torch.cat([set_apart(features, labels, share, rng).flatten(), rest])

    def fixed_point(self, labels: Tensor, most: int = 100) -> Tensor:
        """Iterate as in `HeadEquations`, with one row for each label and a single step."""
        distinct, which, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        onehot, sums, size = self.head.onehot(distinct), self.head.sums, self.head.size
        counts = counts.to(onehot)
        features = torch.zeros(len(distinct), size).to(onehot)
        factors, smoothing = torch.ones(len(distinct)).to(onehot), torch.zeros(1).to(onehot)
        for _ in range(most):
            shares = (features @ self.head.logits + self.head.bias).softmax(dim=1)
            errors = (shares - onehot) * counts[:, None] / size
            if self.beside == "factors" and sums is not None:
                factors = lstsq(errors.T, sums[:, None]).solution[:, 0]
            if self.beside == "smoothing" and sums is not None:
                along = counts @ onehot / size - 1 / self.head.classes
                smoothing = ((sums - errors.sum(dim=0)) @ along / along.square().sum())[None]
                errors += smoothing * (onehot - 1 / self.head.classes) * counts[:, None] / size
            found = lstsq((factors[:, None] * errors).T, self.head.target).solution
            if not found.isfinite().all():
                break
            change, features = float((found - features).norm() / found.norm()), found
            if change < SAME:
                break
        rest = {"factors": factors[which], "smoothing": smoothing}
        return torch.cat([features[which].flatten(), rest.get(self.beside, smoothing[:0])])

    def fixed_point_residual(self, labels: Tensor) -> float:
        """The residual of the fixed point with labels (B,)."""
        return self.residual(self.fixed_point(labels), self.head.onehot(labels))

    def weights_at(self, point: Tensor) -> Tensor:
        """S (B, K) at a point."""
        return self._weights(self._parts(point)[1])

    def refined(
        self, point: Tensor, labels: Tensor, steps: int, lr: float | None = None
    ) -> tuple[float, Tensor]:
        """Levenberg-Marquardt; returns residual and point."""
        onehot = self.head.onehot(labels)

        def linearised(at: Tensor) -> tuple[Solver, Tensor]:
            matrix, slope = self._normal(at, onehot, lr)
            return lambda right, damping: directly(matrix, right, damping), slope

        return descend(point, lambda at: self.residual(at, onehot, lr), linearised, steps)

    def residual(self, point: Tensor, onehot: Tensor, lr: float | None = None) -> float:
        """By what the equations are missed; see `Separation`."""
        missed, _ = self._missed(point, onehot, lr, point.new_empty(0, len(point)))
        below = self._below(point)
        found = math.hypot(float(missed.norm()), float(below.norm()))
        return found if math.isfinite(found) else math.inf

    def separation(self, point: Tensor, labels: Tensor, residual: float) -> Separation:
        """The solution at a point; impossible factors or smoothing have an infinite residual."""
        features, rest = self._parts(point)
        errors = self.errors(point, self.head.onehot(labels))
        if (self.beside == "factors" and (rest <= 0).any()) or (
            self.beside == "smoothing" and not 0 <= rest < 1
        ):
            residual = math.inf
        return Separation(features @ self.head.basis, labels, errors, residual, self, rest)

    def targets(self, found: Separation) -> Tensor:
        """Soft labels (B, classes), each times the factor of its example."""
        onehot = self.head.onehot(found.labels)
        if self.beside == "factors":
            return onehot * found.beside[:, None]
        return self._smoothed(onehot, found.beside) if self.beside == "smoothing" else found.labels

    def notes(self, found: Separation) -> dict[str, float]:
        """The label smoothing, or the smallest factor of an example."""
        if self.beside == "smoothing":
            return {"label_smoothing": float(found.beside)}
        return {"least_factor": float(found.beside.min())} if self.beside == "factors" else {}

    def expected_error(self, found: Separation) -> float:
        """The standard error of the rows of M by the covariance s^2 (J'J)^-1; see `Separation`."""
        size = self.head.size
        if size > INVERTED:
            return math.nan
        features = found.features @ self.head.basis.T
        point = torch.cat([features.flatten(), found.beside])
        matrix, _ = self._normal(point, self.head.onehot(found.labels), None)
        factors, failed = torch.linalg.cholesky_ex(matrix)
        if failed.any():
            return math.inf
        spread = torch.cholesky_inverse(factors).diagonal()[: size**2].view(size, size).sum(dim=1)
        free = max(1, self.head.equations - len(point))
        noise = max(found.residual, ROUNDED) / math.sqrt(free)
        return float((noise * spread.sqrt() / features.norm(dim=1)).max())

    def errors(self, point: Tensor, onehot: Tensor, lr: float | None = None) -> Tensor:
        """E (B, C), the part of each example in the mean gradient of the logits."""
        return self._steps(point, onehot, lr, point.new_empty(0, len(point)))[0]

    def _smoothed(self, onehot: Tensor, smoothing: Tensor) -> Tensor:
        return (1 - smoothing) * onehot + smoothing / self.head.classes

    def _parts(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """M (..., B, B), and the other unknowns, of points (..., unknowns)."""
        size = self.head.size
        features = point[..., : size**2].reshape(*point.shape[:-1], size, size)
        return features, point[..., size**2 :]

    def _weights(self, rest: Tensor) -> Tensor:
        """S (B, K); linear in the unknowns up to a constant."""
        if self.beside == "factors":
            return rest[..., None]
        if self.beside == "split":
            size = self.head.size
            later = rest.reshape(*rest.shape[:-1], size, rest.shape[-1] // size)
            return torch.cat([1 - later.sum(dim=-1, keepdim=True), later], dim=-1)
        return self.weights

    def _steps(
        self, point: Tensor, onehot: Tensor, lr: float | None, tangents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """E (B, C), and its changes (T, B, C) along tangents (T, unknowns), step by step."""
        head, rate, size = self.head, self.lr if lr is None else lr, self.head.size
        features, rest = self._parts(point)
        by_features, by_rest = self._parts(tangents)
        logits, bias, weights = head.logits, head.bias, self._weights(rest)
        by_weights = self._weights(by_rest) - self._weights(0 * by_rest)
        targets, by_targets = onehot, torch.zeros_like(onehot)
        if self.beside == "smoothing":
            targets = self._smoothed(onehot, rest)
            by_targets = by_rest[:, :, None] * (1 / head.classes - onehot)
        by_logits, by_bias = torch.zeros_like(logits), torch.zeros_like(bias)
        whole, by_whole = torch.zeros_like(onehot), torch.zeros_like(onehot)
        steps = weights.shape[1]
        for step in range(steps):
            own, by_own = weights[:, step : step + 1], by_weights[..., step : step + 1]
            shares = (features @ logits + bias).softmax(dim=1)
            missed = shares - targets
            change = by_features @ logits + features @ by_logits + by_bias
            change = shares * (change - (shares * change).sum(dim=-1, keepdim=True))
            errors = missed * own * steps / size
            by_errors = ((change - by_targets) * own + missed * by_own) * steps / size
            whole, by_whole = whole + errors / steps, by_whole + by_errors / steps
            if step + 1 < steps:
                by_logits = by_logits - rate * (by_features.mT @ errors + features.T @ by_errors)
                logits = logits - rate * features.T @ errors
                if head.sums is not None:
                    bias = bias - rate * errors.sum(dim=0)
                    by_bias = by_bias - rate * by_errors.sum(dim=-2, keepdim=True)
        return whole, by_whole

    def _missed(
        self, point: Tensor, onehot: Tensor, lr: float | None, tangents: Tensor
    ) -> tuple[Tensor, Tensor]:
        """By what the equations are missed, as shares of their scales, and its changes (T, ...)."""
        head, (features, rest) = self.head, self._parts(point)
        by_features, by_rest = self._parts(tangents)
        errors, by_errors = self._steps(point, onehot, lr, tangents)
        found = [((errors.T @ features - head.target) / head.scale).flatten()]
        changes = by_errors.mT @ features + errors.T @ by_features
        by_found = [changes.flatten(1) / head.scale]
        if head.sums is not None:
            found.append((errors.sum(dim=0) - head.sums) / head.sum_scale)
            by_found.append(by_errors.sum(dim=1) / head.sum_scale)
        if self.beside == "split":
            weights = self._weights(rest)
            by_weights = self._weights(by_rest) - self._weights(0 * by_rest)
            outside = weights - weights.clamp(min=0, max=1)
            found.append(self.pull * (weights.mean(dim=0) * weights.shape[1] - 1))
            found.append(self.pull * outside.flatten())
            by_found.append(self.pull * by_weights.mean(dim=1) * weights.shape[1])
            by_found.append(self.pull * (by_weights * (outside != 0)).flatten(1))
        return torch.cat(found), torch.cat(by_found, dim=1)

    def _below(self, point: Tensor) -> Tensor:
        """Features below zero (B, d), as shares of their scale."""
        features, _ = self._parts(point)
        if not self.head.nonnegative:
            return torch.zeros(1).to(point)
        return (features @ self.head.basis).clamp(max=0) / self.head.below_scale

    def _normal(self, point: Tensor, onehot: Tensor, lr: float | None) -> tuple[Tensor, Tensor]:
        """J'J, and the slope J' times what the equations are missed by."""
        missed, slopes = self._missed(point, onehot, lr, torch.eye(len(point)).to(point))
        matrix, slope = slopes @ slopes.T, slopes @ missed
        if self.head.nonnegative:
            size, below = self.head.size, self._below(point)
            slope[: size**2] += (below @ self.head.basis.T / self.head.below_scale).flatten()
            for row, own in enumerate(below):
                part = slice(row * size, (row + 1) * size)
                basis = self.head.basis[:, own < 0] / self.head.below_scale
                matrix[part, part] += basis @ basis.T
        return matrix, slope
