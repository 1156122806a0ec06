"""References to Python objects, "module:name": how a scenario names code of the user's own.

A module is looked up in the folders of `look_in` (a scenario's own, then the current one), then
among what is installed. As everywhere in Python, a process holds one module of a name.
"""

import contextlib
import importlib
import importlib.machinery
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fedsim.errors import PluginError, did_you_mean

__all__ = ["is_reference", "look_in", "references", "resolve", "search_folders"]

_FOLDERS: list[str] = []
"""Where modules are looked up first."""

_RESERVED = ("hub:", "package:")
"""What names of models and data sets begin with that are no references."""


def is_reference(name: object) -> bool:
    """Whether a name is of the form "module:name", such as "mypackage.attacks:Mine"."""
    return (
        isinstance(name, str)
        and not name.startswith(_RESERVED)
        and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None
    )


def references(value: Any) -> list[str]:
    """All references within plain tables and lists, in order."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [name for one in inner for name in references(one)]
    return [value] if is_reference(value) else []


def look_in(folders: Iterable[str | Path]) -> None:
    """Look modules up in these folders before all others, in this process from now on."""
    first = list(dict.fromkeys(map(str, folders)))
    _FOLDERS[:] = first + [folder for folder in _FOLDERS if folder not in first]


def search_folders() -> list[Path]:
    """The folders of `look_in`, the first ones first."""
    return [Path(folder) for folder in _FOLDERS]


def resolve(reference: str) -> Any:
    """Import the object that a reference names.

    Args:
        reference: "module:name"; the module may be one of a package ("package.module").

    Raises:
        PluginError: There is no such module, it cannot be imported, it has no such name, or another
            module of its name is imported already.
    """
    module, _, name = reference.partition(":")
    with _first_on_the_path(_FOLDERS):
        _refuse_another(module.partition(".")[0])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not error.name or not f"{module}.".startswith(f"{error.name}."):
                raise PluginError(f"{reference} cannot be imported: {error}") from error
            places = ", ".join(_FOLDERS) or "the folders of sys.path"
            raise PluginError(
                f"{reference} cannot be imported: there is no module '{error.name}', neither in "
                f"{places}, nor installed"
            ) from error
        except Exception as error:
            raise PluginError(
                f"{reference} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    try:
        return getattr(found, name)
    except AttributeError:
        public = [one for one in vars(found) if not one.startswith("_")]
        raise PluginError(
            f"{reference} cannot be imported: module '{module}' has no '{name}'. "
            f"{did_you_mean(name, public)}"
        ) from None


@contextlib.contextmanager
def _first_on_the_path(folders: list[str]) -> Iterator[None]:
    """Import from these folders first; afterwards they stand last, for imports in functions.

    Not first for good: a file of the user's called datasets.py, say, would hide the library.
    """
    ahead = list(folders)
    sys.path[:0] = ahead
    try:
        yield
    finally:
        for folder in ahead:
            sys.path.remove(folder)
        sys.path += [folder for folder in ahead if folder not in sys.path]


def _refuse_another(name: str) -> None:
    """Raise `PluginError` if the module that is imported is not the one in the folders."""
    found = importlib.machinery.PathFinder.find_spec(name, _FOLDERS)
    known = getattr(sys.modules.get(name), "__file__", None)
    if found and found.origin and known and not Path(known).samefile(found.origin):
        raise PluginError(
            f"{found.origin} cannot be imported, because a module '{name}' is imported already, "
            f"from {known}: give it another name, or start a new process"
        )
