"""What an attack requires of an update: bounds on quantities that can be measured.

A `Quantity` is what `fedsim diagnose` measures of every interception, with the words for it. A
`Requirement` is a bound on one, which an adversary declares among its `requirements`.
"""

import math
from dataclasses import dataclass

from fedsim.errors import PluginError, did_you_mean
from fedsim.quantity import QUANTITIES, Quantity, Value

COUNTED = ("examples", "clients", "steps", "normalised_batches", "unknowns")
"""Quantities of which a bound of one has words of its own, `Quantity.free`."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound on a quantity, beyond which an attack finds nothing.

    Attributes:
        quantity: Name of the quantity, one of `QUANTITIES`.
        why: The reason, in a sentence.
        most: The largest value with which the attack still finds something.
        only: Of a quantity with names, the names with which it does.
        advice: Which setting to try; by default that of the quantity.

    Raises:
        PluginError: There is no such quantity, or no bound.
    """

    quantity: str
    why: str
    most: float = math.inf
    only: tuple[str, ...] = ()
    advice: str = ""

    def __post_init__(self) -> None:
        if self.quantity not in QUANTITIES:
            meant = did_you_mean(self.quantity, QUANTITIES)
            raise PluginError(f"requirement: nothing called '{self.quantity}' is measured. {meant}")
        if self.most == math.inf and not self.only:
            raise PluginError(f"requirement: {self.quantity} has no bound; set `most` or `only`")

    @property
    def of(self) -> Quantity:
        """The quantity."""
        return QUANTITIES[self.quantity]

    @property
    def needed(self) -> str:
        """What the attack needs, such as `at most 8 examples`."""
        if self.only:
            return self.of.needed.format(" or ".join(self.only))
        least = self.most == 1 and self.quantity in COUNTED
        if self.of.free and (least or not self.most):
            return self.of.free
        return self.of.needed.format(self.of.show(self.most))

    def met(self, value: Value) -> bool | None:
        """Whether a measured value is within the bound; None if it is not known."""
        if value is None or value == "unknown":
            return None
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value in self.only if isinstance(value, str) else value <= self.most
