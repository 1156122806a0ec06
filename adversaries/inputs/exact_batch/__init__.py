"""Exact batch: all inputs of a batch from the gradient of a perceptron, without optimisation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from adversaries.inputs.exact_batch.layer import THRESHOLDS, Layer
from adversaries.inputs.exact_batch.local_steps import UnrolledHead, inputs_of_steps
from adversaries.inputs.exact_batch.perceptron import Perceptron
from adversaries.inputs.feature_separation.head_equations import Separation
from adversaries.inputs.feature_separation.head_separation import HeadSeparation
from adversaries.inputs.self_check import in_float64, largest_error, mismatch
from fedsim import Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import HeadGradient, claim_labels, layer_rows, unrolled_gradient
from fedsim.spec import ImageSpec, TabularSpec

FITS = 1e-5
"""Mismatch below which inputs are right to rounding, and nothing else is tried."""

REFINED = 5
"""How often inputs are computed, each time from the features of the inputs before."""


class ExactBatch(HeadSeparation):
    """All inputs of a batch, to rounding, from the gradient of a perceptron.

    Feature separation gives the inputs of the head and the part E of each example in the gradient
    of the logits. From there it goes down, layer by layer. The gradient by a layer's outputs is
    E W, and times the slope of the activation it is dZ; the gradient of the layer below is
    dW = dZ' X, whose least squares are its inputs X. Activations that can be inverted (sigmoid,
    tanh, leaky ReLU, ELU) give the slope directly. SiLU and GELU have two slopes at a negative
    output; units with high outputs come first, and their inputs show the other slopes. For ReLU
    the units that fire for an example are read from its recovered activations; units close to zero
    are left out at first, and then read from the layer's own forward pass. Where "close to zero"
    begins is chosen among several thresholds, by how well the batch explains the gradients of all
    layers. Units whose gradient the inputs do not explain are left out, since one of the examples
    was misread there. Layer normalisation is undone with the gradient of the layer's bias
    (`NormalisedLayer`).

    The batch may have fewer examples than there are classes, labels may repeat, and no layer may
    have fewer units than there are examples. What the model does to each value of an input before
    the first layer, such as normalisation, is recognised. Several local steps are unrolled if their
    number and learning rate are known and labels are distinct (`UnrolledHead`); otherwise they are
    taken as one batch. `diagnostics` adds the largest relative
    error of a layer's gradient, `mismatch`: mostly 1e-6 or less, and 1e-4 at most, where inputs
    were right. Above `tolerance` nothing is claimed. An example whose label the model predicts
    almost surely leaves hardly a trace, and may be wrong with a small mismatch; the features'
    `expected_error` shows it, and nothing is claimed above `most_expected_error`.
    """

    name = "exact-batch"
    keywords = ("gradient inversion", "analytic", "exact recovery", "perceptron", "large batches")
    suits = (ImageSpec, TabularSpec)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = HeadSeparation.recovers | {"inputs"}
    cites = "this project"
    requirements: ClassVar[tuple[Requirement, ...]] = (
        *HeadSeparation.requirements,
        Requirement("dropout", "the masks are not known", most=0),
    )

    most_expected_error: float = Field(default=1e-2, gt=0)
    """The largest expected relative error of an example's features in a claim; it is not computed
    for more than 48 examples."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of models that are no perceptrons, or drop units."""
        found = super().cautions(model)
        if model.drops:
            found.append("the model drops units at random, and which ones is not known")
        if model.spec is not None and model.spec.input_shape is not None and not found:
            try:
                Perceptron.of(in_float64(model), model.spec.input_shape)
            except ValueError as error:
                found.append(str(error))
        return found

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Claim features, labels and inputs of all examples.

        Raises:
            ValueError: The model is no perceptron or drops units, a layer's gradient was not sent
                or holds NaN or Inf, or no features or inputs fit.
        """
        given = seen.know(Knowledge.MODEL)
        if given.drops:
            raise ValueError(
                "the model drops units at random, and which ones is not known. feature-separation "
                "claims the features as they reached the head"
            )
        model = in_float64(given).to("cpu")  # as the head's equations
        shape = seen.spec.input_shape
        if shape is None:
            raise ValueError("inputs of different shapes are no inputs of a perceptron")
        chain = Perceptron.of(model, shape)
        gradient = {
            name: value.cpu().double() for name, value in seen.know(Knowledge.GRADIENT).items()
        }
        for layer in chain.layers:
            if f"{layer.name}.weight" not in gradient:
                raise ValueError(
                    f"no gradient of '{layer.name}.weight' was sent, by which the inputs of that "
                    "layer are found. feature-separation needs the head's alone"
                )
            layer_rows(gradient, layer.name)  # which refuses NaN and Inf
        if claimed := self._over_steps(seen, job, model, chain, gradient):
            return claimed
        residual, tried, best = math.inf, 0, _Claim(math.inf, torch.empty(0), 0.0)
        for tried, found in self.separations(seen, job):
            residual = min(residual, found.residual)
            if not found.residual < self.tolerance:
                continue
            for threshold in THRESHOLDS:
                claim = _explained(chain, model, found, gradient, threshold)
                best = min(best, claim, key=lambda one: one.mismatch)
                if best.mismatch < FITS:
                    break
            if best.mismatch < self.tolerance:
                if (expected := found.expected_error) > self.most_expected_error:
                    raise ValueError(
                        f"the batch fits (mismatch {best.mismatch:.2g}), and with that an error "
                        f"of {expected:.2g} of an example's features is expected, above "
                        f"most_expected_error = {self.most_expected_error:g}: an example is "
                        "predicted so surely that it leaves hardly a trace, or examples are alike"
                    )
                notes = {"residual": found.residual, "rank": len(found.labels)}
                notes |= {
                    "expected_error": expected,
                    "label_multisets": tried,
                    "mismatch": best.mismatch,
                    "threshold": best.threshold,
                }
                return claim_labels(
                    found.labels.cpu(),
                    features=chain.features(best.flat).float().cpu(),
                    inputs=list(best.flat.view(-1, *shape).float().cpu()),
                    diagnostics=notes,
                )
        if not residual < self.tolerance:
            raise ValueError(self._misses(residual, tried))
        raise ValueError(
            f"the features fit (residual {residual:.2g}), but no inputs do: they miss a layer's "
            f"gradient by {best.mismatch:.2g} of it, and tolerance = {self.tolerance:g}. "
            "feature-separation claims the features"
        )

    def _over_steps(
        self,
        seen: Observation,
        job: Job,
        model: VictimModel,
        chain: Perceptron,
        gradient: Mapping[str, Tensor],
    ) -> Reconstruction | None:
        """Claim the examples of several local steps; None if they are no such, or none fit."""
        head, steps, lr = HeadGradient.of(seen), seen.steps or 1, seen.lr
        if steps < 2 or not lr or any(type(layer) is not Layer for layer in chain.layers):
            return None
        labels = self._labels(seen, head, self._size(seen, head.weight), job).cpu()
        if len(labels) % steps or len({*labels.tolist()}) < len(labels):
            return None
        bias = gradient.get(f"{seen.head}.bias")
        unrolled = UnrolledHead(
            gradient[f"{seen.head}.weight"], bias, *chain.head, labels=labels, steps=steps, lr=lr
        )
        for number, found in enumerate(unrolled.found(job.rng)):
            job.progress(number, found.residual)
            if not found.residual < self.tolerance:
                continue
            best, order = _Claim(math.inf, torch.empty(0), 0.0), found.split.argsort(stable=True)
            for threshold in THRESHOLDS:
                flat = inputs_of_steps(
                    chain, found, gradient, steps=steps, lr=lr, threshold=threshold
                )
                inputs = flat.view(-1, *chain.shape)[order]
                ours = unrolled_gradient(model, inputs, labels[order], lr=lr, steps=steps)
                missed = largest_error(ours, gradient) if flat.isfinite().all() else math.inf
                best = min(best, _Claim(missed, flat, threshold), key=lambda one: one.mismatch)
            if best.mismatch < self.tolerance:
                notes = {"residual": found.residual, "rank": len(labels), "local_steps": steps}
                notes |= {"mismatch": best.mismatch, "threshold": best.threshold}
                return claim_labels(
                    labels,
                    features=found.features.float(),
                    inputs=list(best.flat.view(-1, *chain.shape).float()),
                    diagnostics=notes,
                )
        return None


@dataclass(frozen=True, slots=True)
class _Claim:
    """Inputs, flat (B, values), with the threshold that gave them and the gradient's mismatch."""

    mismatch: float
    flat: Tensor
    threshold: float


def _explained(
    chain: Perceptron,
    model: VictimModel,
    found: Separation,
    gradient: Mapping[str, Tensor],
    threshold: float,
) -> _Claim:
    """The inputs below a separation, refined with the features that they have themselves."""
    best, features, errors = (
        _Claim(math.inf, found.features, threshold),
        found.features,
        found.errors,
    )
    for _ in range(REFINED):
        flat = chain.inputs(features, errors, gradient, threshold)
        missed = mismatch(model, flat.view(-1, *chain.shape), found.labels, gradient)
        if not missed < best.mismatch:
            break
        best = _Claim(missed, flat, threshold)
        features = chain.features(flat)
        errors = chain.errors(features, found.labels)
    return best
