"""What the page of several runs shows: settings that differ, results side by side, differences."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError
from fedsim.report import tables
from fedsim.report.content import shown
from fedsim.report.folder import RunFolder, open_folder
from fedsim.report.intervals import FEWEST
from fedsim.report.replication import Series
from fedsim.report.verdict import correction, judge
from fedsim.runs.reading import Measures

ASIDE = ("name", "description", "search_dirs", "data_dir")
"""Keys of a scenario that do not affect results."""
COMPOSING = re.compile(
    r"task\.(?!model|parameters|name)|training\.(clients|batch_size|local_steps|local_epochs|batching)$"
)
"""Keys of a scenario by which a client has other examples in a round."""
SETTINGS = 200
"""The largest number of differing settings that are listed."""


def content(run_dirs: Sequence[Path]) -> dict[str, Any]:
    """Everything that the templates of a comparison show, as plain values.

    The first run is the baseline: a point of another run is compared with the point of the same
    name there or, if there is none, with the first one.

    Args:
        run_dirs: Run folders, at least two.

    Raises:
        RunFolderError: A folder is given twice, or cannot be read.
    """
    from fedsim.report import charts

    if len({path.resolve() for path in run_dirs}) < len(run_dirs):
        raise RunFolderError("a run folder is given twice; give each run to compare once")
    folders = [open_folder(path) for path in run_dirs]
    names = _names(folders)
    measures = Measures(
        {name: how for folder in reversed(folders) for name, how in folder.measures.items()}
    )
    scored = (
        pair for one in folders for pair in zip(one.rows["label"], one.rows["metric"], strict=True)
    )
    main = measures.main(scored)
    first, *others = (
        [replace(one, name=f"{name}: {one.name}" if one.name else name) for one in folder.series()]
        for name, folder in zip(names, folders, strict=True)
    )
    elsewhere = {
        name: _task(folder)
        for name, folder in zip(names[1:], folders[1:], strict=True)
        if not _same_data(folder, folders[0])
    }
    pairs = [
        (one, _base(one, name, first, names[0]))
        for name, series in zip(names[1:], others, strict=True)
        for one in series
        if name not in elsewhere
    ]
    every = [one for series in (first, *others) for one in series]
    differing = _differing(names, folders)
    verdicts = judge(
        {
            (one.name, str(label)): part
            for one in every
            for label, part in one.rows.groupby("label", sort=False)
        },
        measures,
    )
    return {
        "names": names,
        "paths": [(name, str(folder.path)) for name, folder in zip(names, folders, strict=True)],
        "notes": [
            f"{name}: {note}"
            for name, one in zip(names, folders, strict=True)
            for note in one.notes
        ]
        + [
            f"{name} is about other examples ({other}) than {names[0]} "
            f"({_task(folders[0])}), so that no difference is taken."
            for name, other in elsewhere.items()
        ]
        + [
            f"{name} has other examples behind the same client and round than {names[0]} "
            f"({', '.join(keys)} differ): differences pair clients and rounds, and not examples."
            for name, folder in zip(names[1:], folders[1:], strict=True)
            if name not in elsewhere and (keys := _composing(folder, folders[0]))
        ],
        "settings": {"head": ["Setting", *names], "body": differing[:SETTINGS]},
        "more_settings": max(0, len(differing) - SETTINGS),
        "replication": tables.replication(every),
        "repeated": any(len(tables.seeds(one)) >= FEWEST for one in every),
        "means": tables.means(every, main, measures, verdicts, of="Run"),
        "correction": correction(verdicts.values()),
        "paired": tables.differences(pairs, main, measures, of="Run", named=len(first) > 1),
        "figures": [charts.overlay(every, main, measures)],
        "hidden": tables.hidden(len(every), charts.OVERLAID),
    }


def _names(folders: Sequence[RunFolder]) -> list[str]:
    """The names of the folders, or their paths if two have the same name."""
    names = [folder.path.resolve().name for folder in folders]
    return names if len({*names}) == len(names) else [str(folder.path) for folder in folders]


def _task(folder: RunFolder) -> str:
    """What the examples of a run are: its task and data, if the scenario names them."""
    table = folder.scenario.get("task")
    named = [table.get(key) for key in ("name", "data")] if isinstance(table, dict) else []
    return ", ".join(shown(one) for one in named if one is not None) or "of a Flower project"


def _same_data(*folders: RunFolder) -> bool:
    """Whether runs have the same data: by fingerprint or, where one is not known, by name."""
    known = [folder.provenance.get("hashes") for folder in folders]
    hashes = [str(one.get("data", "")) if isinstance(one, dict) else "" for one in known]
    return len({*hashes} if all(hashes) else {_task(one) for one in folders}) == 1


def _composing(*folders: RunFolder) -> list[str]:
    """Settings that differ between runs and by which a client has other examples in a round."""
    flat = [dict(_flat(folder.scenario)) for folder in folders]
    keys = dict.fromkeys(key for one in flat for key in one if COMPOSING.match(key))
    return [key for key in keys if len({json.dumps(one.get(key), default=str) for one in flat}) > 1]


def _base(one: Series, name: str, first: Sequence[Series], of: str) -> Series:
    """The series of the first run that a series of another run is compared with."""
    wanted = of + one.name.removeprefix(name)
    return next((base for base in first if base.name == wanted), first[0])


def _differing(names: Sequence[str], folders: Sequence[RunFolder]) -> list[list[list[str]]]:
    """The settings that differ, a row each: the dotted key, then its value in each run."""
    flat = [dict(_flat(folder.scenario)) for folder in folders]
    keys = dict.fromkeys(key for one in flat for key in one if key not in ASIDE)
    found = []
    for key in keys:
        values = [shown(one[key]) or '""' if key in one else "–" for one in flat]
        if len({json.dumps(one.get(key), default=str) for one in flat}) > 1:
            found.append([[key], *([value] for value in values)])
    return found


def _flat(value: Any, key: str = "") -> list[tuple[str, Any]]:
    """Nested tables as pairs of a dotted key and a value; positions of tables in a list count."""
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
        value = {str(place): one for place, one in enumerate(value)}
    if not isinstance(value, dict) or not value:
        return [(key, value)] if key else []
    below = ((f"{key}.{name}" if key else str(name), one) for name, one in value.items())
    return [pair for name, one in below for pair in _flat(one, name)]
