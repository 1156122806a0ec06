"""The quantities that are measured of an interception, and the words for each.

quantity     what a quantity is, and the words for it
quantities   all of them
"""

from fedsim.quantity.quantities import QUANTITIES
from fedsim.quantity.quantity import Quantity, Value

__all__ = ["QUANTITIES", "Quantity", "Value"]
