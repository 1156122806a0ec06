"""Redirects from the old names of modules that have moved; importing one warns."""

import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MOVED: dict[str, str] = {}


def redirect(moved: Mapping[str, str]) -> None:
    """Let modules be imported by the names that they had.

    Args:
        moved: The old full name of each module, and the new one.
    """
    if not _MOVED:
        sys.meta_path.append(_Finder())
    _MOVED.update(moved)


class _Finder(MetaPathFinder, Loader):
    """Finds what is found nowhere else: an empty module that asks the new one for every name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = _MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} is now {new}; the old name will go",
            DeprecationWarning,
            stacklevel=2,
        )
        there = import_module(new)
        module.__doc__ = there.__doc__
        module.__path__ = []  # a package that only this finder looks into

        def ask(name: str) -> Any:
            # With the new module's __path__ its submodules would be loaded a second time.
            if name.startswith("__"):
                raise AttributeError(f"module '{module.__name__}' has no attribute '{name}'")
            return getattr(there, name)

        module.__dict__["__getattr__"] = ask
        public = [name for name in vars(there) if not name.startswith("_")]
        module.__dict__["__all__"] = getattr(there, "__all__", public)
