"""The built-in defenses, one family a file. Ordinary plugins, found through entry points.

`from defenses import GaussianNoise` works too: a class loads when it is first asked for.
"""

import importlib
from typing import Any

_HOMES = {"GaussianNoise": "noise", "Sign": "sign"}

__all__ = ["GaussianNoise", "Sign"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"defenses.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'defenses' has no attribute '{name}'")
