"""Redirects from the old names of modules that have moved, and classes loaded when first used."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

_MOVED: dict[str, str] = {}


def redirect(moved: Mapping[str, str]) -> None:
    """Let modules be imported by the names that they had.

    Args:
        moved: The old full name of each module, and the new one.
    """
    if not _MOVED:
        sys.meta_path.insert(0, _Finder())
    _MOVED.update(moved)


def plugin_classes(package: str) -> tuple[dict[str, str], Callable[[str], Any]]:
    """Find the classes of a package of built-in plugins without importing them.

    Args:
        package: "adversaries" or "defenses".

    Returns:
        The module of each class by the class's name, and the package's `__getattr__`.
    """
    points = entry_points(group=f"fedsim.{package}")
    homes = {point.attr: point.module for point in points if point.module.startswith(f"{package}.")}

    def load(name: str) -> Any:
        if name in homes:
            return getattr(import_module(homes[name]), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return homes, load


class _Finder(MetaPathFinder, Loader):
    """Finds modules by their old names, which then stand for the new modules themselves.

    It comes first, because a submodule of a package that has moved would otherwise be found in the
    new package, and loaded a second time.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.rpartition(".")
        if package in _MOVED and fullname not in _MOVED:
            _MOVED[fullname] = f"{_MOVED[package]}.{name}"
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = _MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} is now {new}; the old name will go",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[module.__name__] = import_module(new)
