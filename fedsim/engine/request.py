"""What `fedsim attack` is asked for: tables that replace those of the recorded run's scenario."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import ScenarioError
from fedsim.plugin import validated
from fedsim.references import references
from fedsim.results.loading import load
from fedsim.runs.provenance import trained_by
from fedsim.scenario import Scenario, locate, read_table
from fedsim.scenario.dotted import assign, set_by
from fedsim.scenario.files import search_dirs
from fedsim.scenario.training import Training

SECTIONS = ("adversaries", "threat", "engine", "metrics")
"""Tables of a scenario that an attack on a recorded run may change."""

LONGEST = 1_000_000
"""The largest number of rounds or clients in a range."""

ABOUT = ("name", "description", "record", "paper", "data_dir", "search_dirs")
"""Keys of a scenario that an attack on a recorded run ignores."""


def changes_of(
    run: Path,
    scenario: str | None,
    adversary: str | None,
    overrides: Sequence[str],
    grants: str | None,
    *,
    trust: bool = False,
    data: str | None = None,
) -> dict[str, Any]:
    """The tables that an attack changes.

    Args:
        run: The run folder.
        scenario: A scenario whose adversaries, threat model and engine are used.
        adversary: The name of the only adversary.
        overrides: `key=value` strings with paths of the scenario.
        grants: A preset of knowledge, or names separated by commas.
        trust: Whether to import code that the run's scenario names.
        data: Folder of local data sets.

    Returns:
        The changed tables by name, see `fedsim.engine.attack`, and `search_dirs` if they name code.
        Keys that nothing changes are left out, as a sweep may give them other values at its points.

    Raises:
        ScenarioError: A key would change the training, which is recorded already; or a scenario
            that a run wrote names code, and is not trusted.
        RunFolderError: The folder holds no run.
    """
    before = load(run, trust=trust, data=data).scenario.to_dict()
    now = copy.deepcopy({"metrics": [], **before})
    folders = [*before.get("search_dirs", [])]
    if scenario is not None:
        path = locate(scenario)
        table = read_table(path)
        folders += search_dirs(table, path.resolve(), trust=trust)
        _check_kinds(table)
        if differing := list(_differing(table, before)):
            raise ScenarioError("\n".join(differing))
        for key in SECTIONS:
            if key in table:
                now[key] = {**now[key], **table[key]} if isinstance(now[key], dict) else table[key]
    if adversary is not None:
        now["adversaries"] = [{"name": adversary}]
    named = {override.partition("=")[0].strip() for override in overrides}
    if grants is not None:
        now["threat"] = {**now["threat"], "grants": _grants(grants)}
        named.add("threat.grants")
    for override in overrides:
        key = override.partition("=")[0].strip()
        if key.partition(".")[0] not in SECTIONS:
            raise ScenarioError(
                f"--set {override}: {key} cannot change after training; of a recorded run, only "
                f"{', '.join(SECTIONS)} can"
            )
        set_by(now, override)
    _check_kinds(now)
    if now["threat"].get("follow", []) != before["threat"]["follow"]:
        raise ScenarioError("threat.follow cannot change after training; it decides who takes part")
    named |= {".".join(key.split(".")[:2]) for key in named}
    changes = {key: now[key] for key in SECTIONS if now[key] != before.get(key, [])}
    for key in {"threat", "engine"} - named:
        changes[key] = {
            name: value
            for name, value in now[key].items()
            if f"{key}.{name}" in named or value != before[key].get(name)
        }
    if references([changes.get(key) for key in ("adversaries", "metrics")]):
        changes["search_dirs"] = [*dict.fromkeys([*folders, str(Path.cwd())])]
    return {key: value for key, value in changes.items() if value != {}}


def changed(
    scenario: Scenario, name: str, point: Scenario, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The tables of a point of a run's sweep, with those that an attack changes.

    A swept setting of an adversary keeps its value of the point, unless the attack changes that
    setting or names another adversary in this place.

    Args:
        scenario: The run's scenario.
        name: The name of the point.
        point: The scenario of the point.
        changes: The changed tables by name, see `fedsim.engine.attack`.
    """
    table, before = point.to_dict(), scenario.to_dict()
    for key, value in changes.items():
        table[key] = {**table[key], **value} if isinstance(value, dict) else copy.deepcopy(value)
    chosen = scenario.combinations()[name]
    drawn = changes.get("threat", {}).get("seed")
    if isinstance(drawn, int) and "seed" in chosen:  # a repetition, as in `Scenario.points`
        table["threat"]["seed"] = drawn + scenario.sweep["seed"].index(chosen["seed"])
    for key, value in chosen.items():
        section, place, *_ = [*key.split("."), ""]
        same = all(_at(table, one) == _at(before, one) for one in (key, f"{section}.{place}.name"))
        if section == "adversaries" and section in changes and place and same:
            assign(table, key, value)
    return table


def _written(training: dict[str, Any]) -> dict[str, Any]:
    """The keys of a `[training]` table in the form in which a run writes them.

    Raises:
        ScenarioError: A value is invalid.
    """
    whole = validated(Training, training, "training").model_dump(exclude_none=True)
    return {key: whole[key] for key in training if key in whole}


def _at(table: Any, key: str) -> Any:
    """The value at a dotted key, None if there is none."""
    for part in key.split("."):
        try:
            table = table[int(part) if isinstance(table, list) else part]
        except (LookupError, TypeError, ValueError):
            return None
    return table


def numbers(text: str | None, option: str) -> frozenset[int] | None:
    """Read numbers and ranges such as `1,5-10`; None if nothing is given."""
    if text is None:
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not 0 <= last - first < LONGEST:
            raise ScenarioError(
                f"{option} {text}: expected numbers or ranges, such as 1,5-10, from the smaller "
                f"number to the larger, of at most {LONGEST:,} numbers"
            )
        found.update(range(first, last + 1))
    return frozenset(found)


def _grants(text: str) -> str | list[str]:
    names = [name.strip() for name in text.split(",")]
    return names if len(names) > 1 or names[0].isupper() else names[0]


def _check_kinds(tables: Mapping[str, Any]) -> None:
    """Refuse what is no table or list where one belongs; the content is checked later."""
    forms = {"adversaries": (list, "[[adversaries]] tables"), "metrics": (list, "a list")}
    for key in SECTIONS:
        kind, expected = forms.get(key, (dict, "a table"))
        if not isinstance(tables.get(key, kind()), kind):
            raise ScenarioError(f"{key}: expected {expected}; found {tables[key]!r:.80}")


def _differing(table: Mapping[str, Any], before: Mapping[str, Any], key: str = "") -> Iterator[str]:
    """The keys of a scenario that differ from the run's, and would change the training."""
    if not key:
        follow = table.get("threat", {}).get("follow")
        table = {k: v for k, v in trained_by(table).items() if k not in (*SECTIONS, *ABOUT)}
        if table.get("seed") == "random":  # which the run has drawn
            del table["seed"]
        if isinstance(table.get("training"), dict):
            table["training"] = _written(table["training"])
        if follow is not None:
            table["threat"] = {"follow": follow}
    for name, value in table.items():
        where = f"{key}.{name}" if key else name
        if isinstance(value, dict) and isinstance(before.get(name), dict):
            yield from _differing(value, before[name], where)
        elif before.get(name) != value:
            yield (
                f"{where} = {value!r}, and the run has {before.get(name)!r}: a recorded run is "
                "attacked as it was trained. Leave the key out, or run the scenario"
            )
