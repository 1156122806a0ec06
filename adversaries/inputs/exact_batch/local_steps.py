"""Batches of several local steps of SGD: each step's weights follow from the examples before it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import lstsq, svd
from torch.nn.functional import one_hot

from adversaries.inputs.exact_batch.layer import Layer
from adversaries.inputs.exact_batch.perceptron import Perceptron

STARTS = 3
"""Random splits from which the search for the right one begins."""

TRIED, SETTLED = 6, 60
"""Rounds of the fixed point for a split that is only compared, and for one that is kept."""

SAME = 1e-13
"""Relative change at which the fixed point has settled."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """Examples with the step that took each.

    Attributes:
        split: The step of each example (N,), from 0.
        features: The inputs of the head when the example was taken (N, d).
        errors: The part of each example in the mean gradient of the logits (N, classes).
        residual: By what the head's equations are missed, as a share.
    """

    split: Tensor
    features: Tensor
    errors: Tensor
    residual: float


class UnrolledHead:
    """The head's equations over K steps of SGD, for examples with distinct labels.

    The mean gradient is dW = sum_k E_k' H_k / K with E_k = (softmax(H_k W_k' + b_k) - Y_k) / B, and
    step k has W_k = W - lr sum_(j < k) E_j' H_j. All rows of H lie in the row space of dW, so that
    H = M R as in `HeadEquations`, and the same fixed point solves for M, with the steps unrolled
    inside. Which step took an example is not known: splits into steps are compared by residual, and
    two examples change places as long as that lowers it.

    Args:
        weight_gradient: dW (C, d) float64.
        bias_gradient: db (C,), or None.
        weight: W (C, d).
        bias: b (C,).
        labels: Distinct labels (N,) int64.
        steps: K, which divides N.
        lr: The learning rate of the steps.
    """

    def __init__(
        self,
        weight_gradient: Tensor,
        bias_gradient: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        *,
        labels: Tensor,
        steps: int,
        lr: float,
    ) -> None:
        count = len(labels)
        self.steps, self.lr = steps, lr
        self.basis = svd(weight_gradient, full_matrices=False)[2][:count]
        self._target, self._logits = weight_gradient @ self.basis.T, self.basis @ weight.T
        self._sums, self._bias = bias_gradient, bias
        self._onehot = one_hot(labels, len(bias)).to(weight)
        self._even = torch.arange(count) * steps // count

    def found(self, rng: torch.Generator) -> Iterator[SplitBatch]:
        """The best split from each of several starts, and the same steps in reverse order."""
        begun = self._solved(self._even, None, SETTLED, lr=0.0)[0]
        for _ in range(STARTS):
            split = self._searched(self._even[torch.randperm(len(begun), generator=rng)], begun)
            for tried in (split, self.steps - 1 - split):
                point, residual = self._solved(tried, begun, SETTLED)
                errors = self._errors(point, tried, self.lr)
                yield SplitBatch(tried, point @ self.basis, errors, residual)

    def _searched(self, split: Tensor, point: Tensor) -> Tensor:
        """Let pairs of examples change places while that lowers the residual."""
        point, residual = self._solved(split, point, TRIED)
        while True:
            moves = list[tuple[float, Tensor]]()
            for one in range(len(split)):
                for other in range(one):
                    if split[one] != split[other]:
                        moved = split.clone()
                        moved[[one, other]] = split[[other, one]]
                        moves.append((self._solved(moved, point, TRIED)[1], moved))
            least, moved = min(moves, key=lambda move: move[0])
            if not least < residual:
                return split
            split = moved
            point, residual = self._solved(split, point, TRIED)

    def _solved(
        self, split: Tensor, point: Tensor | None, most: int, lr: float | None = None
    ) -> tuple[Tensor, float]:
        """The fixed point M (N, N) of a split, and by what it misses the equations."""
        rate = self.lr if lr is None else lr
        found = torch.zeros_like(self._logits[:, : len(split)]) if point is None else point
        for _ in range(most):
            again = lstsq(self._errors(found, split, rate).T, self._target).solution
            if not again.isfinite().all():
                return found, float("inf")
            change, found = float((again - found).norm() / again.norm()), again
            if change < SAME:
                break
        errors = self._errors(found, split, rate)
        missed = (errors.T @ found - self._target).norm() / self._target.norm()
        sums = torch.zeros(())
        if self._sums is not None:
            sums = (errors.sum(dim=0) - self._sums).norm() / self._sums.norm()
        return found, float(torch.hypot(missed, sums.to(missed)))

    def _errors(self, point: Tensor, split: Tensor, lr: float) -> Tensor:
        """E (N, C), with the head's weights of each example's step."""
        logits, bias = self._logits, self._bias
        errors = torch.empty_like(self._onehot)
        for step in range(self.steps):
            own = split == step
            some = (point[own] @ logits + bias).softmax(dim=1) - self._onehot[own]
            some = some / int(own.sum())
            errors[own] = some / self.steps
            logits = logits - lr * point[own].T @ some
            if self._sums is not None:
                bias = bias - lr * some.sum(dim=0)
        return errors


@dataclass(frozen=True, slots=True)
class MovingLayer(Layer):
    """A layer whose weights move from step to step.

    Attributes:
        split: The step of each example.
        steps: The number of steps K.
        rate: The learning rate times K: a step's gradient is K times its part in the mean.
        biased: Whether the bias is trained.
    """

    split: Tensor
    steps: int
    rate: float
    biased: bool

    def errors(self, inputs: Tensor, upstream: Tensor) -> Tensor:
        """dZ (N, units) at these inputs, each with the weights of its step."""
        return self.passed(inputs, upstream)[0]

    def passed(self, inputs: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
        """dZ (N, units), and the gradient of the loss by the inputs (N, inputs)."""
        errors, below = torch.empty_like(upstream), torch.empty_like(inputs)
        weight, bias = self.weight, self.bias
        for step in range(self.steps):
            own = self.split == step
            errors[own] = upstream[own] * self.behind.slope(inputs[own] @ weight.T + bias)
            below[own] = errors[own] @ weight
            weight = weight - self.rate * errors[own].T @ inputs[own]
            bias = bias - self.rate * errors[own].sum(dim=0) * self.biased
        return errors, below


def inputs_of_steps(
    chain: Perceptron,
    batch: SplitBatch,
    gradient: Mapping[str, Tensor],
    *,
    steps: int,
    lr: float,
    threshold: float,
) -> Tensor:
    """Go down from the head to the inputs, with each example's weights; see `Perceptron.inputs`.

    Args:
        chain: The model before the first step.
        batch: The examples.
        gradient: The mean gradient by parameter name, float64.
        steps: The number of steps.
        lr: Their learning rate.
        threshold: A share of the mean activation; see `THRESHOLDS`.

    Returns:
        Inputs, flat (N, values), as the model takes them.
    """
    outputs, upstream = batch.features, torch.empty_like(batch.features)
    weight = chain.head[0]
    for step in range(steps):
        own = batch.split == step
        upstream[own] = batch.errors[own] @ weight
        weight = weight - lr * steps * batch.errors[own].T @ batch.features[own]
    for layer in reversed(chain.layers):
        biased = f"{layer.name}.bias" in gradient
        moving = MovingLayer(
            layer.name,
            layer.weight,
            layer.bias,
            layer.behind,
            batch.split,
            steps,
            lr * steps,
            biased,
        )
        found = moving.inputs(outputs, upstream, gradient, threshold)
        _, upstream = moving.passed(found, upstream)
        outputs = found
    return (outputs - chain.offset) / chain.scale
