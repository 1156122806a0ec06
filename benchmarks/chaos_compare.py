"""What differs between the run folders of an undisturbed run and of one that was disturbed."""

import csv
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

KILLED = ("attack worker killed", "node lost", "raylet killed", "attack dies", "attack hangs")
"""Faults that may end an attack's worker, whose error then says so: of attacks that hang, Ray's
workers are killed if a busy machine does not let them end in time."""


def table(path: Path, *without: str) -> list[dict[str, str]]:
    """The rows of a table, sorted, without some columns."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        found = [{k: v for k, v in row.items() if k not in without} for row in csv.DictReader(file)]
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


def weights(folder: Path) -> dict[str, Any]:
    """The bytes of each array of the last checkpoints, but for the clients' own state."""
    return {
        f"{path.parent.relative_to(folder)}/{name}": value.numpy().tobytes()
        for path in sorted(folder.rglob("global.safetensors"))
        for name, value in load_file(path).items()
        if not name.startswith("client/")
    }


def recorded(folder: Path) -> dict[str, Any]:
    """The last line of each round of a recording, and whether the files are as it says."""
    found: dict[str, Any] = {}
    for index in sorted(folder.glob("tape/**/index.jsonl")):
        for line in index.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                entry = {"round": "broken"}
            found[f"{index.parent.relative_to(folder)} {entry['round']}"] = entry
    for path in sorted(folder.glob("tape/**/*.safetensors")):
        found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def pictures(folder: Path) -> dict[str, str]:
    """The digests of the artifacts."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((folder / "artifacts").rglob("*"))
        if path.is_file()
    }


def files(folder: Path) -> set[str]:
    """The names of all files, but for those of which an attack that is repeated makes another."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith("attacks/")}


def _first(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return ", ".join(names[:3])


def differences(whole: Path, cut: Path, trial: Any) -> str:
    """What differs, "" if nothing does.

    Args:
        whole: The folder of the undisturbed run.
        cut: That of the disturbed one.
        trial: The trial, whose `kind` says whether errors of attacks may differ.
    """
    killed = trial.kind in KILLED and trial.where != "inline"
    without = ["seconds", "attempt", *["error"] * killed]
    wrong = []
    for name, columns in (
        ("findings.csv", without),
        ("utility.csv", []),
        ("points.csv", ["seconds"]),
    ):
        expected, found = table(whole / name, *columns), table(cut / name, *columns)
        if expected != found:
            count = Counter(map(str, found))
            count.subtract(map(str, expected))
            one = next(row for row, number in count.items() if number)
            wrong.append(
                f"{name}: {len(found)} rows of {len(expected)}; {count[one]:+d} {one:.120}"
            )
    for what, read in (("checkpoint", weights), ("tape", recorded), ("artifacts", pictures)):
        expected, found = read(whole), read(cut)
        if expected != found:
            wrong.append(f"{what}: {_first(found, expected)}")
    if not (cut / "report.html").exists():
        wrong.append("no report")
    if other := files(cut) ^ files(whole):
        wrong.append(f"files: {', '.join(sorted(other)[:3])}")
    return "; ".join(wrong)
