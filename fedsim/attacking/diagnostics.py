"""Diagnostics of an attack, as JSON for the log of a run."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

MOST_VALUES = 100
"""The largest number of values of one diagnostic in the log."""


def as_json(value: Any) -> Any:
    """Diagnostics as JSON values: large tensors by their shapes, long lists and texts cut off."""
    if isinstance(value, Tensor):
        return value.tolist() if value.numel() <= MOST_VALUES else f"tensor of {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        shown = [as_json(each) for each in list(value)[:MOST_VALUES]]
        return (
            shown if len(value) <= MOST_VALUES else [*shown, f"and {len(value) - MOST_VALUES} more"]
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:2000]
