"""What is sent to the process of an adversary, and which files that process may read."""

import functools
import io
import os
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from fedsim import plugin
from fedsim.errors import PluginError
from fedsim.isolation import process
from fedsim.isolation.child import Call
from fedsim.libraries import HUB
from fedsim.records import Interception, Truth
from fedsim.references import search_folders
from fedsim.task import Task

OWN = ("fedsim", "adversaries", "defenses", "__main__")
"""fedsim's packages, and the running script, whose code cloudpickle sends anyway."""

MODELS = ("fedsim.tasks.", "fedsim.priors.", "transformers.models.")
"""Beginnings of the names of modules that a child imports along with models."""

_REGISTRY = threading.Lock()
"""Held while modules are registered with cloudpickle, which all threads share."""

NOT_SHOWN = (Task, Truth, Interception)
"""What is never sent to an adversary."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles what an adversary is shown, and refuses what no adversary may see."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, NOT_SHOWN):
            raise PluginError(
                f"the model or its loss holds a {type(obj).__name__}, through which an adversary "
                "would reach the truth. Make the loss a function of its arguments alone"
            )
        return super().reducer_override(obj)


def pickled(call: Call) -> bytes:
    """A call as bytes, with the user's own models as code, so that no module of theirs is read."""
    own = [one for one in list(sys.modules.values()) if _is_own(one)]
    with _REGISTRY:
        for module in own:
            cloudpickle.register_pickle_by_value(module)
        try:
            buffer = io.BytesIO()
            _Pickler(buffer, protocol=5).dump(call)
            return buffer.getvalue()
        finally:
            for module in own:
                cloudpickle.unregister_pickle_by_value(module)


def _is_own(module: ModuleType) -> bool:
    """Whether a module is the user's: neither Python's, nor installed, nor fedsim's."""
    name, file = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    return bool(file) and _is_users(str(name), str(file)) and sys.modules.get(name) is module


@functools.cache
def _is_users(name: str, file: str) -> bool:
    installed = {"site-packages", "dist-packages"} & {*Path(file).parts}
    library = file.startswith(sysconfig.get_paths()["stdlib"])
    return not installed and not library and name.partition(".")[0] not in OWN


def models() -> list[str]:
    """Modules of models and priors that this process has, and a child will need."""
    return [name for name in list(sys.modules) if name.startswith(MODELS)]


def sources(names: Sequence[str]) -> Iterator[str]:
    """Python files that the modules of adversaries consist of and may import from beside them."""
    registered = plugin.registered("adversaries")
    for name in names:
        module = registered.get(name, name).partition(":")[0].partition(".")[0]
        for folder in [*search_folders(), *map(Path, process.search_path())]:
            package, file = folder / module, folder / f"{module}.py"
            if module and (package.is_dir() or file.is_file()):
                yield from (str(package), str(file))
                yield from map(str, _beside(folder))
                break


def _beside(folder: Path) -> Iterator[Path]:
    """Python files in a folder of modules, and in the packages in it; no other files."""
    if folder.name in ("site-packages", "dist-packages"):
        return
    yield from folder.glob("*.py")
    for file in folder.glob("*/__init__.py"):
        if file.parent.name not in OWN:
            yield from file.parent.rglob("*.py")


def weights(value: Any) -> Iterator[str]:
    """Files and folders that settings name, such as those of a pretrained model.

    A word alone, such as "data" or ".", names none: a path has a separator or ends in a suffix.
    """
    if isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from weights(one)
    elif isinstance(value, str) and value.startswith(HUB):
        from huggingface_hub.constants import HF_HUB_CACHE

        yield f"{HF_HUB_CACHE}/models--{value.removeprefix(HUB).replace('/', '--')}"
    elif isinstance(value, Path) or (isinstance(value, str) and _is_path(value)):
        for folder in (Path(), *search_folders()):
            with suppress(OSError, ValueError):
                if (path := (folder / value).resolve()).exists():
                    yield str(path)


def _is_path(text: str) -> bool:
    return "/" in text or os.sep in text or bool(Path(text).suffix)


def named(name: str, settings: Mapping[str, Any]) -> list[str]:
    """The names of an adversary and of those that its settings name."""
    found = [name]
    for key, value in settings.items():
        if key.endswith("_from") and value not in (None, "given", "none"):
            table = value if isinstance(value, Mapping) else {"name": value}
            found += named(str(table.get("name")), table)
    return found
