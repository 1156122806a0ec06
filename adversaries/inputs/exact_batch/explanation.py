"""The inputs that explain the gradients of all layers, once the features are known."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.inputs.exact_batch.layer import THRESHOLDS
from adversaries.inputs.exact_batch.local_steps import SplitBatch, inputs_of_steps
from adversaries.inputs.exact_batch.perceptron import Perceptron
from adversaries.inputs.feature_separation.separation import Separation
from adversaries.inputs.self_check import largest_error, mismatch
from fedsim import VictimModel
from fedsim.gradients import unrolled_gradient

FITS = 1e-5
"""Mismatch below which inputs are right to rounding, and nothing else is tried."""

REFINED = 5
"""How often inputs are computed, each time from the features of the inputs before."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Inputs, flat (B, values), with the threshold that gave them and the gradient's mismatch."""

    mismatch: float
    flat: Tensor
    threshold: float


def explained(
    chain: Perceptron, model: VictimModel, found: Separation, gradient: Mapping[str, Tensor]
) -> Explanation:
    """The inputs below a separation that explain the gradient best."""
    best = Explanation(math.inf, torch.empty(0), 0.0)
    for threshold in THRESHOLDS:
        one = _explained_at(chain, model, found, gradient, threshold)
        best = min(best, one, key=lambda one: one.mismatch)
        if best.mismatch < FITS:
            break
    return best


def _explained_at(
    chain: Perceptron,
    model: VictimModel,
    found: Separation,
    gradient: Mapping[str, Tensor],
    threshold: float,
) -> Explanation:
    """The inputs below a separation, refined with the features that they have themselves."""
    best, features, errors = (
        Explanation(math.inf, found.features, threshold),
        found.features,
        found.errors,
    )
    targets = found.targets
    for _ in range(REFINED):
        flat = chain.inputs(features, errors, gradient, threshold)
        inputs = flat.view(-1, *chain.shape)
        missed = mismatch(model, inputs, targets, gradient)
        if targets is not found.labels:  # the model's own loss may smooth labels, or sum
            missed = min(missed, mismatch(model, inputs, found.labels, gradient))
        if not missed < best.mismatch:
            break
        best = Explanation(missed, flat, threshold)
        features = chain.features(flat)
        errors = chain.errors(features, targets)
    return best


def explained_by_steps(
    chain: Perceptron,
    model: VictimModel,
    batch: SplitBatch,
    gradient: Mapping[str, Tensor],
    *,
    steps: int,
    lr: float,
) -> Explanation:
    """The inputs below a batch of several steps that explain the gradient best."""
    best, order = Explanation(math.inf, torch.empty(0), 0.0), batch.split.argsort(stable=True)
    for threshold in THRESHOLDS:
        flat = inputs_of_steps(chain, batch, gradient, steps=steps, lr=lr, threshold=threshold)
        if not flat.isfinite().all():
            continue
        inputs, labels = flat.view(-1, *chain.shape)[order], batch.solution.labels[order]
        missed = largest_error(
            unrolled_gradient(model, inputs, labels, lr=lr, steps=steps), gradient
        )
        best = min(best, Explanation(missed, flat, threshold), key=lambda one: one.mismatch)
        if best.mismatch < FITS:
            break
    return best
