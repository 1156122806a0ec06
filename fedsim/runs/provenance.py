"""What a run depends on: versions, seed, and hashes of scenario, data and model."""

import contextlib
import hashlib
import json
import platform
import tomllib
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fedsim.errors import FedsimError, RunFolderError
from fedsim.references import references
from fedsim.scenario import Scenario

FILE = "provenance.json"
SCHEMA = 1
"""Version number of the run folder's format."""
ASIDE = frozenset({"data_dir", "engine", "description", "paper", "record", "search_dirs"})
"""Keys of a scenario that do not affect results: where it runs, what for, and what is kept."""
THEN = ", then "
"""Separates the devices of a run that was continued elsewhere."""
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
        "fedsim": metadata.version("fedsim"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "hashes": {"scenario": hashlib.sha256(table.encode()).hexdigest(), **hashes},
        "device": THEN.join(filter(None, devices)),
    }


def read(folder: Path) -> dict[str, Any]:
    """Read the provenance of a run folder; empty if there is none that can be read."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def results(table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a scenario that results depend on, with their values."""
    return {key: value for key, value in table.items() if key not in ASIDE}


def differences(folder: Path, scenario: Scenario, growing: Collection[str] = ()) -> list[str]:
    """The keys in which a scenario differs from that of a run folder.

    Args:
        folder: The run folder.
        scenario: The scenario.
        growing: Keys, in any table, that may differ.

    Raises:
        RunFolderError: The folder's scenario cannot be read.
    """
    path = folder / "scenario.toml"
    try:
        before = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunFolderError(
            f"{path} cannot be read: {reason}. Put back the file that the run wrote, or choose "
            "another --out"
        ) from error
    before = results(before)
    # Parsing imports what a scenario names: of a folder's, only what this one names as well.
    if {*references(before)} <= {*references(scenario.to_dict())}:
        with contextlib.suppress(FedsimError):  # keys newer than the run have defaults
            before = tomllib.loads(Scenario.parse(before).to_toml())
    before, now = (
        _without(growing, results(table)) for table in (before, tomllib.loads(scenario.to_toml()))
    )
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


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
