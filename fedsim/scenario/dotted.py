"""Dotted keys of nested tables: setting a value, and naming the point of a sweep."""

import json
import re
import tomllib
from typing import Any

from fedsim.errors import ScenarioError, encodable


def set_by(table: dict[str, Any], text: str) -> None:
    """Set one value of a table.

    Args:
        table: The table, changed in place.
        text: `key=value` with a dotted key and a TOML value; a bare word is a string.

    Raises:
        ScenarioError: The text has no key or value, or the table no such place.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(f"--set {text}: expected key=value, such as training.lr=0.05")
    if text != encodable(text):
        raise ScenarioError(f"--set {encodable(text)}: expected text in UTF-8")
    try:
        parsed, *others = tomllib.loads(f"value = {value}").values()
    except tomllib.TOMLDecodeError:
        parsed, others = value.strip(), []
    except RecursionError:
        raise ScenarioError(f"--set {text[:60]}...: it is nested too deeply") from None
    if others:
        raise ScenarioError(f"--set {text!r}: it sets several keys; give --set once for each")
    assign(table, key.strip(), parsed)


def assign(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the value at a dotted key.

    Args:
        table: The table, changed in place. Missing tables are added.
        key: Keys joined by dots, positions of a list as numbers from 0.
        value: The new value.

    Raises:
        ScenarioError: The key leads through a value that is not a table, or past a list's end.
    """
    *path, last = key.split(".")
    place: Any = table
    for done, part in enumerate(path):
        if isinstance(place, list):
            place = place[_position(place, part, key)]
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        if not isinstance(place, dict | list):
            where, fix = ".".join(path[: done + 1]), ""
            if isinstance(place, str) and done == len(path) - 1:
                whole = {"name": place, last: value}.items()
                entries = ", ".join(
                    f"{name} = {json.dumps(one, default=str)}" for name, one in whole
                )
                fix = f", but {place!r}: set {where}={{{entries}}}"
            raise ScenarioError(f"{key}: '{where}' is no table{fix}")
    if isinstance(place, list):
        place[_position(place, last, key)] = value
    else:
        place[last] = value


def list_first(key: str) -> str:
    """How to state the entries of a list that a key such as `defenses.0.sigma` found empty."""
    where, setting, *_ = [*re.split(r"\.\d+\.?", key, maxsplit=1), ""]
    entry = f"{setting} = ..." if setting not in ("", "name") and "." not in setting else "..."
    return f'State its entries first: {where} = [{{name = "...", {entry}}}]'


def unlisted(name: str, value: Any) -> str:
    """The same where such a key, without the list, has made the table `value` in its place."""
    entry = value.get("0") if isinstance(value, dict) and len(value) == 1 else None
    setting = next(iter(entry), "") if isinstance(entry, dict) else None
    return "" if setting is None else f". {list_first(f'{name}.0.{setting}')}"


def _position(items: list[Any], part: str, key: str) -> int:
    if not items:
        raise ScenarioError(f"{key}: the list is empty. {list_first(key)}")
    if not part.isdecimal() or int(part) >= len(items):
        raise ScenarioError(
            f"{key}: '{part}' is no position in a list of {len(items)}; they count from 0"
        )
    return int(part)


def short(value: Any) -> str:
    """Format a value for the name of a sweep's point; a plugin's table as `sign(scale=0.1)`."""
    if isinstance(value, dict) and "name" in value:
        settings = " ".join(f"{k}={short(v)}" for k, v in value.items() if k != "name")
        return f"{value['name']}({settings})" if settings else str(value["name"])
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        return "+".join(map(short, value)) or "none"
    return str(value) if not isinstance(value, dict | list) else str(value).replace(" ", "")
