"""What a run depends on: versions, seed, and hashes of scenario, data and model."""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
