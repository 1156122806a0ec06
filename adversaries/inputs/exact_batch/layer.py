"""A fully connected layer, and the inputs of a batch from its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import lstsq

from adversaries.inputs.layer_chain import Activation

THRESHOLDS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2)
"""Activations below these shares of their mean count as those of units that do not fire."""

DOUBTFUL = 10.0
"""Factor above a threshold below which a unit is left out at first."""

ROUNDS = 20
"""How often slopes are read anew from the layer's own forward pass."""

OUTLYING = 30.0
"""Units whose gradient is missed by more than this many medians are left out: one of the examples
was taken to fire, or not to, by mistake."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A fully connected layer behind the input or another one.

    Attributes:
        name: Its name.
        weight: W (units, inputs) float64.
        bias: b (units,), zeros without one.
        behind: The function that its outputs go through.
    """

    name: str
    weight: Tensor
    bias: Tensor
    behind: Activation

    def fitted(self, errors: Tensor, gradient: Tensor) -> Tensor:
        """The inputs X (B, inputs) in dW = dZ' X, given dZ (B, units) and dW."""
        found: Tensor = lstsq(errors.T, gradient).solution
        return found

    def inputs(
        self,
        outputs: Tensor,
        upstream: Tensor,
        gradient: Mapping[str, Tensor],
        threshold: float,
    ) -> Tensor:
        """Find the inputs of a batch.

        Args:
            outputs: What the next layer receives (B, units).
            upstream: The gradient of the loss by these outputs (B, units).
            gradient: The gradient by parameter name, of which dW (units, inputs) is used.
            threshold: A share of the mean activation; see `THRESHOLDS`.

        Returns:
            X (B, inputs).
        """
        by_weight = gradient[f"{self.name}.weight"]
        if self.behind.inverse is not None:
            before = self.behind.inverse(outputs)
            errors = upstream * self.behind.slope(before)
            if self.behind.lowest is None:
                return self.fitted(errors, by_weight)
            # Outputs far above the minimum are rarely of the falling branch: their units first.
            least = outputs.amin(dim=0)
            sure = least >= least.median()
        else:
            sizes, level = outputs.abs(), threshold * outputs.abs().mean()
            sure = ((sizes > DOUBTFUL * level) | (sizes <= level)).all(dim=0)
            errors = upstream * (outputs > level)
            if (by_bias := gradient.get(f"{self.name}.bias")) is not None:
                # db is the sum of dZ, whatever X is: it shows units that were misread.
                missed = (errors.sum(dim=0) - by_bias).abs()
                sure &= missed <= OUTLYING * missed[sure].median()
        for _ in range(ROUNDS):
            found = self.fitted(errors[:, sure], by_weight[sure])
            again = self.errors(found, upstream)
            missed = (again.T @ found - by_weight).norm(dim=1)
            fits = missed <= OUTLYING * missed[missed > 0].median()
            if torch.equal(again, errors) and torch.equal(fits, sure):
                break
            errors, sure = again, fits
        return found

    def outputs(self, inputs: Tensor) -> Tensor:
        """What the next layer receives (B, units), given inputs (B, inputs)."""
        return self.behind.value(inputs @ self.weight.T + self.bias)

    def errors(self, inputs: Tensor, upstream: Tensor) -> Tensor:
        """dZ (B, units) at these inputs."""
        return upstream * self.behind.slope(inputs @ self.weight.T + self.bias)
