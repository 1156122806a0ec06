"""What a run depends on: versions, seed, and hashes of scenario, data and model."""

import contextlib
import hashlib
import json
import platform
import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedsim import __version__
from fedsim.errors import FedsimError, RunFolderError
from fedsim.references import references
from fedsim.runs.files import write_whole
from fedsim.runs.tables import PUT_BACK
from fedsim.scenario import Scenario

FILE = "provenance.json"
SCHEMA = 2
"""Version number of the run folder's format; 1 had no digests of recorded files and attacks."""
ASIDE = frozenset({"data_dir", "engine", "description", "paper", "record", "search_dirs", "sinks"})
"""Keys of a scenario that do not affect results: where it runs, what for, and what is kept."""
ATTACKING = frozenset({"adversaries", "metrics", "name"})
"""Further keys that training does not depend on, of which a resumed run may have others."""
LONGEST = 80
"""Characters of two differing values that are shown."""
THEN = ", then "
"""Separates the devices of a run that was continued elsewhere."""
STATED = {"defenses": "DEFENSE", "training.local_steps": "LOCAL_STEPS"}
"""Knowledge that is not granted if a key of another Flower project's scenario was not stated."""
TYPES: dict[str, type] = {"versions": dict, "hashes": dict, "isolation": dict, "unknown": list}
"""Types of entries that others read parts of."""
PACKAGES = ["flwr", "numpy", "ray", "torch", "transformers"]


def of(
    scenario: Scenario, hashes: Mapping[str, str], before: Mapping[str, Any], device: str
) -> dict[str, Any]:
    """Collect the provenance of a run.

    Args:
        scenario: What runs.
        hashes: Fingerprints by what they are of, such as "data".
        before: The provenance that the run had when it was interrupted; empty for a new run.
        device: Where it runs; the devices of `before` stay in front.

    Returns:
        The content of provenance.json.
    """
    devices = dict.fromkeys([*str(before.get("device", "")).split(THEN), device])
    table = json.dumps(results(scenario.to_dict()), sort_keys=True)
    return {
        "schema": SCHEMA,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "fedsim": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "hashes": {"scenario": hashlib.sha256(table.encode()).hexdigest(), **hashes},
        "device": THEN.join(filter(None, devices)),
    }


def read(folder: Path) -> dict[str, Any]:
    """Read the provenance of a run folder; empty if there is none that can be read.

    Entries of another type than `of` writes are left out: the folder may be somebody else's.
    """
    path = folder / FILE
    try:  # reading a pipe would wait for ever
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    every = found.items() if isinstance(found, dict) else ()
    return {key: value for key, value in every if isinstance(value, TYPES.get(key, object))}


def add_isolation(folder: Path, walls: Mapping[str, str]) -> None:
    """Add the walls around an adversary's attacks, in words, by its label."""
    content = read(folder)
    if content and walls:
        content["isolation"] = {**content.get("isolation", {}), **walls}
        write_whole(folder / FILE, json.dumps(content, indent=2).encode(), sync=True)


def changed_since(folder: Path) -> list[str]:
    """What differs between this process and a run on which results may depend, in sentences."""
    before = read(folder)
    now = {"fedsim": __version__, "python": platform.python_version()}
    now |= {name: _version(name) for name in ("numpy", "torch", "transformers")}
    then = {**before.get("versions", {}), **before}
    changed = [
        f"{name} {then[name]}, now {version}"
        for name, version in now.items()
        if name in then and then[name] != version
    ]
    if before.get("platform") not in (None, platform.platform()):
        changed.append(f"{before['platform']}, now {platform.platform()}")
    if not changed:
        return []
    return [f"the run was recorded with {'; '.join(changed)}: values may differ by rounding"]


def results(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a scenario that results depend on, with their values."""
    return {key: value for key, value in table.items() if key not in ASIDE}


def differences(
    folder: Path, scenario: Scenario, growing: Collection[str] = (), *, training: bool = False
) -> list[str]:
    """The keys in which a scenario differs from that of a run folder.

    Args:
        folder: The run folder.
        scenario: The scenario.
        growing: Keys, in any table, that may differ.
        training: Whether only keys that training depends on are compared.

    Returns:
        Dotted keys, with both values if these are short.

    Raises:
        RunFolderError: The folder's scenario cannot be read.
    """
    before = _scenario_of(folder)
    before = results(before)
    # Parsing imports what a scenario names: of a folder's, only what this one names as well.
    if {*references(before)} <= {*references(scenario.to_dict())}:
        with contextlib.suppress(FedsimError):  # keys newer than the run have defaults
            before = tomllib.loads(Scenario.parse(before).to_toml())
    before, now = (
        _without(growing, results(table)) for table in (before, tomllib.loads(scenario.to_toml()))
    )
    if training:
        before, now = map(trained_by, (before, now))
    return [*_differing(before, now, "")]


def trained_by(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a scenario that training depends on."""
    kept = {key: value for key, value in results(table).items() if key not in ATTACKING}
    threat = kept.get("threat")
    follow = threat.get("follow", []) if isinstance(threat, dict) else []
    return {**kept, "threat": {"follow": follow}}


def training_digest(folder: Path) -> str:
    """SHA-256 of what training depends on in a run folder's scenario.toml, as the file says it.

    A sweep is left out, since points may be added to it.

    Raises:
        RunFolderError: The file cannot be read.
    """
    table = {key: one for key, one in trained_by(_scenario_of(folder)).items() if key != "sweep"}
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _scenario_of(folder: Path) -> dict[str, Any]:
    path = folder / "scenario.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(f"{path} cannot be read: {reason}. {PUT_BACK}") from error


def _differing(before: Any, now: Any, key: str) -> Iterator[str]:
    """The places at which two tables differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for each in sorted({*before, *now}):
            where = f"{key}.{each}" if key else each
            yield from _differing(before.get(each), now.get(each), where)
    elif before != now:
        values = f"{before!r} before, now {now!r}"
        yield f"{key} ({values})" if len(values) < LONGEST else key


def _without(keys: Collection[str], value: Any) -> Any:
    """A table without these keys, nor those of the tables in it."""
    if isinstance(value, dict):
        return {key: _without(keys, one) for key, one in value.items() if key not in keys}
    return [_without(keys, one) for one in value] if isinstance(value, list) else value


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
