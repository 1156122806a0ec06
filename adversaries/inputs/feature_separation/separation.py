"""One solution of a head's equations."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class Equations(Protocol):
    """What a solution solves."""

    def expected_error(self, found: "Separation") -> float:
        """The largest standard error of an example's features, relative to them."""

    def targets(self, found: "Separation") -> Tensor:
        """Labels (B,), or soft ones (B, classes), each times the factor of its example."""

    def notes(self, found: "Separation") -> dict[str, float]:
        """What is known beside the features, for `diagnostics`."""


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
        beside: The values of the unknowns beside the features; see `ExtendedEquations`.
    """

    features: Tensor
    labels: Tensor
    errors: Tensor
    residual: float
    equations: Equations
    beside: Tensor

    @property
    def expected_error(self) -> float:
        """The largest standard error of an example's features, relative to them.

        It is what least squares give with this residual, or with rounding. NaN for more than
        `INVERTED` examples.
        """
        return self.equations.expected_error(self)

    @property
    def targets(self) -> Tensor:
        """Labels (B,), or soft ones (B, classes), each times the factor of its example."""
        return self.equations.targets(self)
