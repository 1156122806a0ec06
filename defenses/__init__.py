"""The built-in defenses, one family a file. Ordinary plugins, found through entry points.

`from defenses import GaussianNoise` works too: a class loads when it is first asked for.
"""

import importlib
from typing import Any

_HOMES = {
    "ClientDP": "dp",
    "DPSGD": "dp",
    "DeepGradientCompression": "compression",
    "Dropout": "dropout",
    "GaussianNoise": "noise",
    "GradDrop": "sparsify",
    "GradientMask": "sparsify",
    "HalfPrecision": "quantize",
    "Int8": "quantize",
    "LaplacianNoise": "noise",
    "QSGD": "quantize",
    "Sign": "sign",
    "TopK": "sparsify",
}

__all__ = [
    "DPSGD",
    "QSGD",
    "ClientDP",
    "DeepGradientCompression",
    "Dropout",
    "GaussianNoise",
    "GradDrop",
    "GradientMask",
    "HalfPrecision",
    "Int8",
    "LaplacianNoise",
    "Sign",
    "TopK",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"defenses.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'defenses' has no attribute '{name}'")
