"""A fully connected layer with layer normalisation, and the inputs of a batch from its outputs."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import lstsq, svd
from torch.nn import functional

from adversaries.inputs.exact_batch.layer import Layer

ROUNDS = 100
"""How often the inputs are computed, each time with the layer's own forward pass."""

LEAST = 1e-6
"""Normalised values less than this above the smallest are those of a ReLU that does not fire."""

OUTLYING = 3.0
"""Units whose gradient is missed by more than this many medians are left out of the next round."""

SETTLED = 1e-13
"""Relative change of the inputs at which this ends."""


@dataclass(frozen=True, slots=True)
class NormalisedLayer(Layer):
    """A layer whose outputs Z are normalised, before the activation or behind it.

    With n = (v - mean v) / sigma, the gradient by the values v of an example is
    (g - mean g - n mean(g n)) / sigma, where g is the gradient by n. All but sigma is known from
    the recovered outputs, so that dW = dZ' X and db = the sum of dZ are equations for X / sigma and
    1 / sigma. Values that a ReLU behind the normalisation hides are read from the layer's forward
    pass, again and again. In front of it, the smallest n is that of units which do not fire.

    Attributes:
        gain: The factor of n (units,).
        shift: What is added (units,).
        eps: What is added to the variance.
        first: Whether it is normalised before the activation.
    """

    gain: Tensor
    shift: Tensor
    eps: float
    first: bool

    def inputs(
        self,
        outputs: Tensor,
        upstream: Tensor,
        gradient: Mapping[str, Tensor],
        threshold: float,
    ) -> Tensor:
        """Find the inputs of a batch, as `Layer.inputs` does."""
        rows = torch.cat(
            [gradient[f"{self.name}.weight"], gradient[f"{self.name}.bias"][:, None]], dim=1
        )
        # [X / sigma | 1 / sigma] = K R, with a basis R of the rows of the gradient.
        _, _, right = svd(rows, full_matrices=False)
        basis = right[: len(outputs)]
        target = rows @ basis.T
        summing = torch.cat([self.weight, self.bias[:, None]], dim=1) @ basis.T
        values, slopes = self._read(outputs, threshold)
        if not values.isfinite().all():
            raise ValueError(
                f"the layer normalisation behind '{self.name}' has a gain of zero, which hides "
                "outputs"
            )
        found = torch.full_like(target[: len(outputs)], torch.inf)
        sure = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for _ in range(ROUNDS):
            errors = self._errors(values, slopes, upstream)
            before, found = found, lstsq(errors[:, sure].T, target[sure]).solution
            if (found - before).norm() < SETTLED * found.norm():
                break
            missed = (errors.T @ found - target).norm(dim=1)
            sure = missed <= OUTLYING * missed.median()
            summed = found @ summing.T / (found @ basis[:, -1:])
            if self.first:
                values = self._normalised(summed)
                slopes = self.behind.slope(values * self.gain + self.shift)
            else:
                values = self._normalised(self.behind.value(summed))
                slopes = self.behind.slope(summed)
        joint: Tensor = found @ basis
        return joint[:, :-1] / joint[:, -1:]

    def errors(self, inputs: Tensor, upstream: Tensor) -> Tensor:
        """dZ (B, units) at these inputs."""
        with torch.enable_grad():
            summed = (inputs @ self.weight.T + self.bias).detach().requires_grad_()
            (found,) = torch.autograd.grad((self._behind(summed) * upstream).sum(), summed)
        return found

    def outputs(self, inputs: Tensor) -> Tensor:
        """What the next layer receives."""
        return self._behind(inputs @ self.weight.T + self.bias)

    def _read(self, outputs: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
        """The normalised values n, and the activation's slopes, as far as the outputs show them."""
        if not self.first:
            values = (outputs - self.shift) / self.gain
            least = values.amin(dim=1, keepdim=True)
            return values, (values > least + max(threshold, LEAST)).to(values)
        if self.behind.inverse is not None:
            before = self.behind.inverse(outputs)
            return (before - self.shift) / self.gain, self.behind.slope(before)
        fires = outputs > threshold * outputs.mean()
        values = torch.where(fires, (outputs - self.shift) / self.gain, 0.0)
        hidden = values.sum(dim=1, keepdim=True) / (~fires).sum(dim=1, keepdim=True).clamp(min=1)
        return torch.where(fires, values, -hidden), fires.to(values)  # their mean is zero

    def _errors(self, values: Tensor, slopes: Tensor, upstream: Tensor) -> Tensor:
        """dZ times sigma (B, units)."""
        by_values = self.gain * upstream * (slopes if self.first else 1.0)
        along = (by_values * values).mean(dim=1, keepdim=True)
        found = by_values - by_values.mean(dim=1, keepdim=True) - values * along
        return found if self.first else found * slopes

    def _normalised(self, values: Tensor) -> Tensor:
        """Values less their mean, divided by their standard deviation."""
        return functional.layer_norm(values, values.shape[1:], eps=self.eps)

    def _behind(self, summed: Tensor) -> Tensor:
        """What becomes of Z (B, units)."""
        if self.first:
            return self.behind.value(self._normalised(summed) * self.gain + self.shift)
        return self._normalised(self.behind.value(summed)) * self.gain + self.shift
