"""The base class of plugins, and how they are found, configured and validated.

Nothing in fedsim imports an adversary, a defense, a metric or a task by name. A package adds one
with an entry point in one of the groups below, as the built-in ones do. A class that is not
installed is named by a reference, "module:Class".
"""

import functools
import importlib.metadata
import re
from collections.abc import Collection, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar, get_args

import pydantic
from pydantic import BaseModel, ConfigDict
from pydantic_core import ErrorDetails

from fedsim.described import Described, description
from fedsim.errors import DataError, PluginError, ScenarioError, did_you_mean
from fedsim.references import is_reference, resolve

Model = TypeVar("Model", bound=BaseModel)

EXPECTED = {
    "bool_": "true or false",
    "dict_": "a table",
    "float_": "a number",
    "int_": "an integer",
    "list_": "a list",
    "model_": "a table",
    "string_type": "a string",
    "tuple_": "a list",
}
"""Names of types in messages, by the beginning of pydantic's error types."""

_BASES = {
    "adversaries": "fedsim.adversary:Adversary",
    "defenses": "fedsim.defense:Defense",
    "metrics": "fedsim.metric:Metric",
    "tasks": "fedsim.task:Task",
}
"""Base class of each kind of plugin, as a reference, because its module imports this one."""

GROUPS = {kind: f"fedsim.{kind}" for kind in _BASES}
"""The entry point group of each kind of plugin."""


class Plugin(Described):
    """Base class of adversaries, defenses, metrics and tasks, whose fields are their settings.

    A subclass sets `name`, under which it is registered, and `keywords`. Settings are typed,
    bounded, described and frozen; unknown settings are errors.
    """

    model_config = ConfigDict(validate_default=True)

    name: ClassVar[str] = ""

    keywords: ClassVar[tuple[str, ...]] = ()
    """Terms of the field by which `fedsim list WORD` finds the plugin, besides name and summary."""

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring."""
        return (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""

    @classmethod
    def mistake(cls) -> str:
        """What is wrong with the class so that none can be made of it; "" for nothing."""
        return ""


@functools.cache
def _entry_points(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=GROUPS[kind])
    return {point.name: point for point in found}


@functools.cache
def _packages(kind: str) -> dict[str, dict[str, str]]:
    """By name, the references that are installed under it, each with its package."""
    found: dict[str, dict[str, str]] = {}
    for point in importlib.metadata.entry_points(group=GROUPS[kind]):
        package = point.dist.name if point.dist else "an unknown package"
        found.setdefault(point.name, {})[point.value] = package
    return found


def register(kind: str, points: Mapping[str, str]) -> None:
    """Register plugins in this process, in place of those that are installed.

    Args:
        kind: One of `GROUPS`.
        points: References, "module:Class", by the names under which they are registered.
    """
    found = _entry_points(kind)
    found.clear()
    found |= {
        name: importlib.metadata.EntryPoint(name, value, GROUPS[kind])
        for name, value in points.items()
    }


def registered(kind: str) -> dict[str, str]:
    """Return the references, "module:Class", of the installed plugins of a kind, by name."""
    return {name: point.value for name, point in _entry_points(kind).items()}


def is_built_in(kind: str, name: str) -> bool:
    """Return whether a name is that of fedsim's own plugin, which is not imported.

    Args:
        kind: "adversaries" or "defenses".
        name: The registered name, or a reference.
    """
    return registered(kind).get(name, "").partition(".")[0] == kind


def names(kind: str) -> list[str]:
    """Return the names of the installed plugins of a kind, one of `GROUPS`, sorted."""
    return sorted(_entry_points(kind))


def check_registered(kind: str, name: str) -> None:
    """Raise `PluginError` if no package or several register a name, or it cannot name folders."""
    points = _entry_points(kind)
    if name not in points:
        raise PluginError(
            f"no '{name}' among the {kind}. {did_you_mean(name, points)} For one of your own, "
            "install its package, or name its class as 'module:Class'"
        )
    # What `register` names comes from no package, and is meant.
    if points[name].dist and len(found := _packages(kind).get(name, {})) > 1:
        several = " and ".join(f"{value} of {package}" for value, package in found.items())
        raise PluginError(
            f"several of the {kind} are called '{name}': {several}. Rename or uninstall one, "
            'or name the one that you mean as "module:Class"'
        )
    checked_title(f"the entry point of {points[name].value}", name)


def find(kind: str, name: str) -> type[Plugin]:
    """Find a plugin class.

    Args:
        kind: One of `GROUPS`, such as "adversaries".
        name: The name under which it is registered, or a reference, "module:Class".

    Raises:
        PluginError: There is no such plugin, it cannot be imported, or it is of another kind.
    """
    if not isinstance(name, str):
        raise PluginError(f"{name!r} names none of the {kind}: expected a string")
    if is_reference(name):
        cls, what = resolve(name), f"'{name}'"
    else:
        check_registered(kind, name)
        point = _entry_points(kind)[name]
        what = f"'{name}' ({point.value})"
        try:
            cls = point.load()
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{what} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    if not (isinstance(cls, type) and issubclass(cls, resolve_name(_BASES[kind]))):
        base = _BASES[kind].replace(":", ".")
        raise PluginError(f"{what} is none of the {kind}: expected a class derived from {base}")
    return cls


def title(kind: str, name: str) -> str:
    """Return a plugin's name in tables; for a reference, the name that its class declares.

    Args:
        kind: One of `GROUPS`.
        name: The registered name, or a reference.

    Raises:
        PluginError: The declared name cannot name folders of the run.
    """
    if not is_reference(name):
        return name
    return checked_title(name, find(kind, name).name or name.rpartition(":")[2])


def checked_title(name: str, declared: str) -> str:
    """Return a plugin's name, if it can name folders of the run.

    Args:
        name: What gives the name, such as the reference to the class.
        declared: The name.

    Raises:
        PluginError: It holds other signs than letters, digits, - and _.
    """
    if not re.fullmatch(r"[\w-]{1,100}", declared):
        raise PluginError(
            f"{name} declares the name {declared!r}; expected letters, digits, - and _"
        )
    return declared


def make(kind: str, name: str, settings: dict[str, Any], where: str = "") -> Plugin:
    """Make a plugin with its settings.

    Args:
        kind: One of `GROUPS`.
        name: The registered name, or a reference.
        settings: Settings by name.
        where: Place of the settings in the scenario, for messages.

    Raises:
        PluginError: There is no such plugin, or its class leaves out what its kind has to declare.
        ScenarioError: A setting is unknown, missing or invalid.
    """
    cls = find(kind, name)
    stated = [one for one in resolve_name(_BASES[kind]).__class_vars__ if not hasattr(cls, one)]
    if lacking := sorted({*stated, *getattr(cls, "__abstractmethods__", ())}):
        raise PluginError(
            f"'{name}' does not define {', '.join(lacking)}, which all {kind} have to. "
            f"`fedsim check {name}` says what else is wrong"
        )
    if wrong := cls.mistake():
        raise PluginError(f"'{name}' cannot be used: {wrong}")
    return validated(cls, settings, where or f"{kind} '{name}'")


def _table_at(
    model: type[pydantic.BaseModel], path: Sequence[int | str]
) -> type[pydantic.BaseModel]:
    """Return the model of a nested table, by the keys and list positions that lead to it."""
    for part in path:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        for inner in (kind, *get_args(kind)):
            if isinstance(inner, type) and issubclass(inner, pydantic.BaseModel):
                model = inner
    return model


def validated(model: type[Model], values: dict[str, Any], where: str) -> Model:
    """Validate values by a pydantic model.

    Args:
        model: The model.
        values: Its fields.
        where: Place of the values in the scenario, for messages.

    Raises:
        ScenarioError: One line for each value that is unknown, missing or invalid.
    """
    try:
        return model.model_validate(values)
    except pydantic.ValidationError as error:
        # Each type of a union reports an error of its own: those of one place share a line.
        at: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
        for problem in error.errors():
            at.setdefault(_place(problem, values), []).append(problem)
        lines = []
        for path, problems in at.items():
            if any(other[: len(path)] == path != other for other in at):
                continue  # the type that fits best reports an error further within
            place = ".".join([where] * bool(where) + [str(part) for part in path])
            if problems[0]["type"] == "extra_forbidden":
                known = _table_at(model, path[:-1]).model_fields
                lines.append(f"{place}: unknown key. {did_you_mean(str(path[-1]), known)}")
            elif problems[0]["type"] == "missing":
                table, name = _table_at(model, path[:-1]), str(path[-1])
                meant = description(table, name) if name in table.model_fields else ""
                lines.append(f"{place}: missing. {meant}".rstrip())
            else:
                said = ", or ".join(dict.fromkeys(map(_worded, problems)))
                said = said.replace(", or expected ", ", or ")
                found = problems[0]["input"]
                # Of a whole table the message names the wrong values.
                whole = isinstance(found, dict) and (
                    not path or problems[0]["type"] == "value_error"
                )
                lines.append(f"{place}: {said}" + ("." if whole else f"; found {found!r:.80}."))
        raise ScenarioError("\n".join(lines)) from error


def _place(problem: ErrorDetails, within: Any) -> tuple[int | str, ...]:
    """Return the keys that lead to an error, without a union's types, which pydantic includes."""
    loc = problem["loc"]
    path = []
    for depth, part in enumerate(loc):
        keyed = isinstance(within, dict) and part in within
        listed = isinstance(within, list) and isinstance(part, int) and part < len(within)
        if keyed or listed:
            within = within[part]
        elif depth and (part != loc[-1] or problem["type"] != "missing"):
            continue
        path.append(part)
    return tuple(path)


def _worded(problem: ErrorDetails) -> str:
    """Rephrase a message of pydantic in the terms of a TOML file."""
    for kind, name in EXPECTED.items():
        if problem["type"].startswith(kind):
            return f"expected {name}"
    said = problem["msg"].removeprefix("Value error, ")
    if sizes := re.fullmatch(r"\w+ should have (.+ items?) after validation, not \d+", said):
        return f"expected {sizes[1]}"
    said = re.sub("^Input should be (?=greater|less)", "expected a number ", said)
    return said.replace("Input should be", "expected", 1)


def table(value: Any, where: str, *, key: str = "name", example: str) -> dict[str, Any]:
    """Expand a name to a table of settings.

    Args:
        value: A name, or a table that holds a name and settings.
        where: Place of the value in the scenario, for messages.
        key: Key of the name in the table.
        example: A valid table, for messages.

    Returns:
        The table, with the name under `key`.

    Raises:
        DataError: The value is neither.
    """
    settings = {key: value} if isinstance(value, str) else value
    if not isinstance(settings, dict) or not isinstance(settings.get(key), str):
        raise DataError(f"{where} is {value!r}; expected a {key}, or a table such as {example}")
    return settings


def check_objects(kind: str, given: object) -> None:
    """Refuse what is no list of plugins, such as a class, a name, or a plugin alone.

    Args:
        kind: One of `GROUPS`.
        given: What a program gives.

    Raises:
        ScenarioError: It is none, or one of its elements is no plugin of this kind.
    """
    if not isinstance(given, Collection) or isinstance(given, str):
        raise ScenarioError(f"{kind}: found {given!r:.80}; expected a list, such as [X()]")
    for one in given:
        if not isinstance(one, resolve_name(_BASES[kind])):
            raise ScenarioError(f"{kind}: found {one!r:.80}; expected an object, such as X()")
