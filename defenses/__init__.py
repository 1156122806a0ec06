"""The built-in defenses, one family a file.

They are ordinary plugins, found through entry points. `from defenses import GaussianNoise` works
too: a class is imported when it is first used.
"""

import importlib
import importlib.metadata
from typing import Any

_HOMES = {
    point.attr: point.module
    for point in importlib.metadata.entry_points(group="fedsim.defenses")
    if point.module.startswith(f"{__name__}.")
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
