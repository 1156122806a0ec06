"""References to Python objects, "module:name", by which a scenario names the user's own code.

A module is looked up in the folders of `look_in` (the scenario's, then the current one), then
among the installed packages. As usual in Python, a process holds one module of each name.
"""

import contextlib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsim.errors import PluginError, did_you_mean

_FOLDERS: list[str] = []
"""Folders in which modules are looked up first."""

_RESERVED = ("hub:", "package:")
"""Prefixes of names of models and data sets that look like references but are not."""


def is_reference(name: object) -> bool:
    """Return whether a name has the form "module:name", such as "mypackage.attacks:Mine"."""
    return (
        isinstance(name, str)
        and not name.startswith(_RESERVED)
        and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*", name) is not None
    )


def references(value: Any) -> list[str]:
    """Return all references within nested tables and lists, in order."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [name for one in inner for name in references(one)]
    return [value] if is_reference(value) else []


def look_in(folders: Iterable[str | Path]) -> None:
    """Make this process look up modules in these folders before all others from now on."""
    first = list(dict.fromkeys(map(str, folders)))
    _FOLDERS[:] = first + [folder for folder in _FOLDERS if folder not in first]


def search_folders() -> list[Path]:
    """Return the folders of `look_in`, in the order of look-up."""
    return [Path(folder) for folder in _FOLDERS]


def resolve(reference: str) -> Any:
    """Import the object that a reference names.

    Args:
        reference: "module:name"; the module may be one of a package ("package.module").

    Raises:
        PluginError: There is no such module, it cannot be imported, it has no such name, or another
            module of the same name is imported already.
    """
    module, _, name = reference.partition(":")
    with _first_on_the_path(_FOLDERS):
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
        except SystemExit as error:
            raise PluginError(
                f"{reference} cannot be imported: its module ends the process (SystemExit: {error})"
                ". Put what it does as a script under: if __name__ == '__main__':"
            ) from error
        except Exception as error:
            raise PluginError(
                f"{reference} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    _refuse_another(module, found)
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
    """Put these folders first on the import path, and last afterwards.

    They stay on the path because functions may import modules later. They do not stay first,
    because a user's file such as `datasets.py` would hide the library of that name.
    """
    ahead = list(folders)
    sys.path[:0] = ahead
    try:
        yield
    finally:
        for folder in ahead:
            with contextlib.suppress(ValueError):  # the module may have changed the path
                sys.path.remove(folder)
        sys.path += [folder for folder in ahead if folder not in sys.path]


def _refuse_another(module: str, found: ModuleType) -> None:
    """Raise `PluginError` if the module that is imported is not the first one in the folders."""
    file = getattr(found, "__file__", None)  # a notebook has none
    known = Path(file).resolve() if file else None
    places = (Path(folder, *module.split(".")) for folder in _FOLDERS)
    paths = (path for one in places for path in (one / "__init__.py", one.with_suffix(".py")))
    path = next(filter(Path.is_file, paths), None)
    if path and path.resolve() != known:
        raise PluginError(
            f"{path} cannot be imported, because a module '{module}' is imported already, "
            f"from {known}: give it another name, or start a new process"
        )
