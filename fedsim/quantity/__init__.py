"""The quantities that are measured of an interception, and the words for each."""

from fedsim.quantity.quantities import QUANTITIES
from fedsim.quantity.quantity import Quantity, Value

__all__ = ["QUANTITIES", "Quantity", "Value"]
