"""Batches of several local steps of SGD: each step's weights follow from the examples before it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from adversaries.inputs.exact_batch.layer import Layer
from adversaries.inputs.exact_batch.perceptron import Perceptron
from adversaries.inputs.feature_separation.extended_equations import ExtendedEquations
from adversaries.inputs.feature_separation.head_equations import CLOSE
from adversaries.inputs.feature_separation.reduced_head import ReducedHead
from adversaries.inputs.feature_separation.separation import Separation

PERTURBATIONS = (0.1, 0.3, 1.0, 0.03)
"""How far examples of the same label are set apart at each start, in norms of a row."""

PULL = 0.3
"""Weight of the equations for the split, in residuals of the batch taken as one step's."""

RANDOM = 0.5
"""Share of a random split at the beginning of a start; the rest is an even one."""

RATES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the learning rate at which a split is solved in turn."""


ROUNDINGS = 3.0
"""How often a residual may be that which rounding is expected to leave."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A solution with the step of each example.

    Attributes:
        solution: Features as they were when an example was taken, and the rest.
        split: The step of each example (N,), from 0.
    """

    solution: Separation
    split: Tensor


def split_batches(
    head: ReducedHead, labels: Tensor, *, steps: int, lr: float, most: int, rng: torch.Generator
) -> Iterator[SplitBatch]:
    """Solve the equations of a head over several local steps of equal batches.

    Which step took an example is not known. `ExtendedEquations` first solve for the features and
    for a split with fractions. Then each step gets the N / K examples that are most in it, and the
    features are solved for again, with this split and with the same steps in reverse order. From
    the features of a batch taken as one step's, the whole learning rate can lead away from the
    solution; so the best split is also solved at a quarter of the learning rate first, then at a
    half, and so on.

    Args:
        head: The head's mean gradient.
        labels: Labels (N,) int64, which may repeat.
        steps: K, which divides N.
        lr: The learning rate of the steps.
        most: The largest number of steps of Levenberg-Marquardt at once.
        rng: Source of randomness.

    Yields:
        Solutions, two of each start and two more.
    """
    size, one = len(labels), ExtendedEquations(head)
    begun = one.fixed_point(labels)
    pull = PULL * one.fixed_point_residual(labels)
    search = ExtendedEquations(head, "split", lr=lr, pull=pull)

    def solved(split: Tensor, point: Tensor, rates: tuple[float, ...]) -> SplitBatch:
        weights = one_hot(split, steps).to(begun)
        equations = ExtendedEquations(head, weights=weights, lr=lr)
        for rate in rates:
            residual, point = equations.refined(point, labels, most, lr=rate * lr)
        return SplitBatch(equations.separation(point, labels, residual), split)

    starts = list[tuple[float, Tensor, Tensor]]()
    for share in PERTURBATIONS:
        start = one.apart(begun, labels, share, rng)
        weights = torch.rand(size, steps, generator=rng).to(begun).softmax(dim=1)
        weights = RANDOM * weights + (1 - RANDOM) / steps
        begin = torch.cat([start, weights[:, 1:].flatten()])
        residual, found = search.refined(begin, labels, most)
        split = _rounded(search.weights_at(found))
        starts.append((residual, split, start))
        for tried in (split, steps - 1 - split):
            yield solved(tried, found[: len(begun)], RATES[-1:])
    _, split, start = min(starts, key=itemgetter(0))
    for tried in (split, steps - 1 - split):
        yield solved(tried, start, RATES)


def residual_of_rounding(head: ReducedHead, weight: Tensor, rate: float) -> float:
    """The residual that weights rounded to float32 can leave in their difference.

    Args:
        head: The head's mean gradient: the difference of weights, divided by the rate.
        weight: W (C, d).
        rate: The learning rate times the number of steps.
    """
    inside = math.sqrt(head.size / weight.shape[1])  # the share of errors in the row space
    rounding = torch.finfo(torch.float32).eps * float(weight.norm()) * inside
    return max(CLOSE, ROUNDINGS * rounding / (rate * head.scale))


def _rounded(weights: Tensor) -> Tensor:
    """The step of each example (N,) in equal steps, given weights (N, K)."""
    size, steps = weights.shape
    order = (weights @ torch.arange(steps).to(weights)).argsort()
    split = torch.empty(size, dtype=torch.int64)
    split[order] = torch.arange(size) * steps // size
    return split


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
    outputs, errors = batch.solution.features, batch.solution.errors
    upstream = torch.empty_like(outputs)
    weight = chain.head[0]
    for step in range(steps):
        own = batch.split == step
        upstream[own] = errors[own] @ weight
        weight = weight - lr * steps * errors[own].T @ outputs[own]
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
