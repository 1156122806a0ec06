"""Exact batch: all inputs of a batch from the gradient of a perceptron, without optimisation."""

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from adversaries.inputs.exact_batch.explanation import Explanation, explained, explained_by_steps
from adversaries.inputs.exact_batch.layer import Layer
from adversaries.inputs.exact_batch.local_steps import (
    SplitBatch,
    residual_of_rounding,
    split_batches,
)
from adversaries.inputs.exact_batch.perceptron import Perceptron
from adversaries.inputs.feature_separation.head_separation import HeadSeparation
from adversaries.inputs.layer_chain import chain_cautions
from adversaries.inputs.self_check import in_float64
from fedsim import Job, Knowledge, Observation, Reconstruction, Requirement, VictimModel
from fedsim.gradients import claim_labels, layer_rows
from fedsim.spec import ImageSpec, TabularSpec

SURE = 1e-6
"""Residual of features that no other start finds better ones than."""


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
    number and learning rate are known (`split_batches`); otherwise they are taken as one batch.

    `diagnostics` adds the largest relative error of a layer's gradient, `mismatch`: mostly 1e-6 or
    less, and 1e-4 at most, where inputs were right. Above `tolerance` nothing is claimed. An
    example whose label the model predicts almost surely leaves hardly a trace, and may be wrong
    with a small mismatch; the features' `expected_error` shows it, and nothing is claimed above
    `most_expected_error`.
    """

    name = "exact-batch"
    keywords = ("gradient inversion", "analytic", "exact recovery", "perceptron", "large batches")
    suits = (ImageSpec, TabularSpec)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = HeadSeparation.recovers | {"inputs"}
    cites = "this project"
    requirements: ClassVar[tuple[Requirement, ...]] = (
        *(one for one in HeadSeparation.requirements if one.quantity != "steps"),
        Requirement("steps", "with more, which step took an example is rarely found", most=4),
        Requirement("dropout", "the masks are not known", most=0),
    )

    most_expected_error: float = Field(default=1e-2, gt=0)
    """The largest expected relative error of an example's features in a claim; it is not computed
    for more than 48 examples."""

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of models that are no perceptrons, or drop units."""
        return super().cautions(model) or chain_cautions(model, _recognised)

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
        residual, missed, tried, doubt = math.inf, math.inf, 0, ""
        for tried, found in self.separations(seen, job, alone=not chain.layers):
            residual = min(residual, found.residual)
            if not found.residual < self.tolerance:
                continue
            best = explained(chain, model, found, gradient)
            missed = min(missed, best.mismatch)
            if not best.mismatch < self.tolerance:
                continue
            if (expected := found.expected_error) > self.most_expected_error:
                doubt = self._doubt(best.mismatch, expected)
                if found.residual < SURE:  # no other start comes closer
                    break
                continue
            notes = {"residual": found.residual, "rank": len(found.labels)}
            notes |= found.equations.notes(found)
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
        if doubt:
            raise ValueError(doubt)
        if not residual < self.tolerance:
            raise ValueError(self._misses(residual, tried))
        raise ValueError(
            f"the features fit (residual {residual:.2g}), but no inputs do: they miss a layer's "
            f"gradient by {missed:.2g} of it, and tolerance = {self.tolerance:g}. "
            "feature-separation claims the features"
        )

    def _doubt(self, mismatch: float, expected: float) -> str:
        """Why a batch that fits is not claimed."""
        return (
            f"the batch fits (mismatch {mismatch:.2g}), and with that an error of {expected:.2g} "
            "of an example's features is expected, above most_expected_error = "
            f"{self.most_expected_error:g}: an example is predicted so surely that it leaves "
            "hardly a trace, or examples are alike"
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
        steps, lr = seen.steps or 1, seen.lr
        if steps < 2 or not lr or any(type(layer) is not Layer for layer in chain.layers):
            return None
        sent, head = self.reduced(seen)
        labels = self._labels(seen, sent, head.size, job).cpu()
        if len(labels) % steps:
            return None
        sure = residual_of_rounding(head, chain.head[0], lr * steps)
        best: tuple[Explanation, SplitBatch] | None = None
        batches = split_batches(head, labels, steps=steps, lr=lr, most=self.steps, rng=job.rng)
        for number, batch in enumerate(batches):
            job.progress(number, residual := batch.solution.residual)
            if not residual < self.tolerance:
                continue
            claim = explained_by_steps(chain, model, batch, gradient, steps=steps, lr=lr)
            if best is None or claim.mismatch < best[0].mismatch:
                best = claim, batch
            if best[0].mismatch < self.tolerance and residual < sure:
                break
        if best is None or best[0].mismatch > self.tolerance:
            return None
        claim, batch = best
        if (expected := batch.solution.expected_error) > self.most_expected_error:
            raise ValueError(self._doubt(claim.mismatch, expected))
        notes = {"residual": batch.solution.residual, "rank": len(labels), "local_steps": steps}
        notes |= {"expected_error": expected}
        notes |= {"mismatch": claim.mismatch, "threshold": claim.threshold}
        return claim_labels(
            labels,
            features=batch.solution.features.float(),
            inputs=list(claim.flat.view(-1, *chain.shape).float()),
            diagnostics=notes,
        )


def _recognised(model: VictimModel, shape: tuple[int, ...]) -> list[str]:
    """Nothing, if the model is a perceptron.

    Raises:
        ValueError: It is none.
    """
    Perceptron.of(model, shape)
    return []
