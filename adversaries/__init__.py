"""The built-in adversaries by what they recover; each attack is a file, or a folder of its name.

They are ordinary plugins, found through entry points. `from adversaries import LLG` works too: a
class is imported when it is first used.
"""

import importlib
import importlib.metadata
from typing import Any

from fedsim.moved import redirect

_HOMES = {
    point.attr: point.module
    for point in importlib.metadata.entry_points(group="fedsim.adversaries")
    if point.module.startswith(f"{__name__}.")
}

# Modules of attacks lay directly in this package before they were sorted by what they recover.
redirect({f"{__name__}.{home.rpartition('.')[2]}": home for home in _HOMES.values()})

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
