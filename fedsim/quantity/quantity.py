"""A quantity that is measured of an interception, and the words for it."""

import math
import re
from dataclasses import dataclass

ONE = re.compile(r"\b1 ((?:local )?\w+?)s\b")
"""A count of one before a plural."""

Value = float | str | None
"""A measured value: a number, a name, or None if it is not known."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A property of an interception, and how a sentence speaks of it.

    Attributes:
        name: Its column in diagnosis.csv.
        means: Its definition, in a sentence.
        found: What was measured; {} is the value.
        needed: What an attack needs; {} is the bound.
        advice: Which setting to try where an attack needs less.
        free: What an attack needs that allows none (a bound of 0), or of a count one.
        share: Whether values are shown in per cent.
        truth: Whether it is measured with the true examples, which a server does not have.
    """

    name: str
    means: str
    found: str
    needed: str
    advice: str
    free: str = ""
    share: bool = False
    truth: bool = False

    def show(self, value: Value) -> str:
        """Format a value: shares in per cent, numbers with three digits."""
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            return "unknown"
        if isinstance(value, str):
            return value
        if value == int(value) and not self.share and abs(value) < 1e6:
            return str(int(value))
        return f"{100 * value:.3g} %" if self.share else f"{value:.3g}"

    def describe(self, value: Value) -> str:
        """Say what was measured, such as `4 local steps`."""
        text = self.found.format(self.show(value))
        return ONE.sub(r"1 \1", text) if value == 1 and not self.share else text
