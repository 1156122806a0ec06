"""Plugins: settings as typed fields, found through entry points.

Nothing in fedsim imports an adversary, a defense or a task by name. Whoever installs a package
with an entry point in one of the groups below has added one; the built-in ones come the same way.
"""

import functools
import importlib.metadata
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, get_args

import pydantic
from pydantic import BaseModel, ConfigDict

from fedsim.errors import DataError, PluginError, ScenarioError, did_you_mean

__all__ = ["GROUPS", "Plugin", "find", "make", "names", "table", "validated"]

Model = TypeVar("Model", bound=BaseModel)

GROUPS = {
    "adversaries": "fedsim.adversaries",
    "defenses": "fedsim.defenses",
    "tasks": "fedsim.tasks",
}


class Plugin(BaseModel):
    """Base of adversaries, defenses and tasks: its fields are its settings.

    A subclass sets `name`, the name it is registered under. Settings are typed, bounded,
    described, and frozen; unknown ones are errors.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    name: ClassVar[str] = ""

    @classmethod
    def summary(cls) -> str:
        """The first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""


@functools.cache
def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=GROUPS[kind])
    return {point.name: point for point in found}


def names(kind: str) -> list[str]:
    """Names of the installed plugins of a kind ("adversaries", "defenses", "tasks"), sorted."""
    return sorted(_entry_points(kind))


def find(kind: str, name: str) -> type[Plugin]:
    """The plugin class registered under a name; raises `PluginError`."""
    points = _entry_points(kind)
    if not isinstance(name, str):
        raise PluginError(f"{name!r} names none of the {kind}: expected a string")
    if name not in points:
        raise PluginError(f"no '{name}' among the {kind}. {did_you_mean(name, points)}")
    try:
        cls = points[name].load()
    except Exception as error:
        raise PluginError(
            f"'{name}' ({points[name].value}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Plugin)):
        raise PluginError(f"'{name}' ({points[name].value}) is no fedsim plugin class")
    return cls


def make(kind: str, name: str, settings: dict[str, Any], where: str = "") -> Plugin:
    """A plugin by name with its settings; errors name the setting by its place in the scenario."""
    return validated(find(kind, name), settings, where or f"{kind} '{name}'")


def _table_at(
    model: type[pydantic.BaseModel], path: Sequence[int | str]
) -> type[pydantic.BaseModel]:
    """The model of a table within a table, by the names and positions that lead there."""
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and issubclass(inner, pydantic.BaseModel):
                model = inner
    return model


def validated(model: type[Model], values: dict[str, Any], where: str) -> Model:
    """`model(**values)`, with pydantic's complaints turned into one readable `ScenarioError`."""
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            place = f"{where}.{key}" if where and key else where or key
            if problem["type"] == "extra_forbidden":
                *path, last = problem["loc"]
                known = _table_at(model, path).model_fields
                lines.append(f"{place}: unknown key. {did_you_mean(str(last), known)}")
            else:
                found = repr(problem["input"])[:80]
                said = problem["msg"].removeprefix("Value error, ")
                lines.append(f"{place}: {said}; found {found}.")
        raise ScenarioError("\n".join(lines)) from error


def table(value: Any, where: str, *, key: str = "name", example: str) -> dict[str, Any]:
    """Settings with what they are of under `key`, from a table that has it or from the name alone.

    Raises `DataError` for anything else; `where` and `example` are for its message.
    """
    settings = {key: value} if isinstance(value, str) else value
    if not isinstance(settings, dict) or not isinstance(settings.get(key), str):
        raise DataError(f"{where} is {value!r}; expected a {key}, or a table such as {example}")
    return settings
