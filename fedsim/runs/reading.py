"""The reading half of the run folder: its tables and files.

It needs neither torch nor the plugins of the run. Everything in the folder is treated as hostile,
since it may come from another machine.
"""

import io
import math
import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.errors import RunFolderError
from fedsim.inert import restored
from fedsim.metric import FORMAT, Measure

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = [
    "scenario", "point", "seed", "round", "client", "victim", "adversary", "metric", "value",
    "baseline", "baseline_prior", "status", "error", "attempt", "seconds", "iterations", "granted",
    "label", "batch_size", "local_steps", "inclusion", "artifact", "truth", "checked",
]  # fmt: skip
"""The fields of `fedsim.records.Finding`, which cannot be imported here: it needs torch."""
NEEDED = {"round", "victim", "adversary", "metric", "value", "baseline", "status"}
NUMBERS = ("round", "value", "baseline", "baseline_prior", "attempt", "seconds", "iterations")
TENSORS = "reconstruction.safetensors"
"""The file of an attack's claims, beside the files that show them."""
STATUSES = ("ok", "failed", "timeout", "denied", "unverified")
UNCOUNTED = ("denied", "unverified")
"""Statuses of attacks that enter no average: they never took place, or their truth is in doubt."""


def inside(run_dir: Path, relative: str, *, folder: bool = False) -> Path | None:
    """Find the regular file, or the folder, at a relative path in the run folder.

    Absolute paths, `..` and symbolic links are refused: a run folder may come from someone else,
    and its report must not contain other files of this machine.

    Returns:
        The path, or None if there is no such file or it is refused.
    """
    parts = relative.replace("\\", "/").split("/")
    if not relative or "\0" in relative or ":" in relative or ".." in parts or parts[0] == "":
        return None
    path = run_dir
    try:
        for part in parts:
            path = path / part
            if path.is_symlink():
                return None
        return path if (path.is_dir() if folder else path.is_file()) else None
    except OSError:
        return None


def refuse_pipes(run_dir: Path) -> None:
    """Raise `RunFolderError` for a pipe, socket or device in a run folder: reading it may hang."""
    for path in run_dir.rglob("*"):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise RunFolderError(f"{path} is no regular file; remove it")


def read_rows(run_dir: Path, name: str, needed: set[str]) -> "tuple[pd.DataFrame, list[str]]":
    """Read a CSV file of the run folder as text columns.

    Args:
        run_dir: The run folder.
        name: The name of the file.
        needed: Columns that the file must have.

    Returns:
        The rows, none if there is no such file, and notes on what had to be left out.

    Raises:
        RunFolderError: The file is no CSV, or lacks a column.
    """
    import pandas as pd

    path = inside(run_dir, name)
    if path is None:
        return pd.DataFrame(), []
    text = path.read_bytes().decode("utf-8", errors="replace").replace("\0", "�")
    notes = []
    end = _last_whole_row(text)
    if text[end:].strip():
        notes.append(f"The last line of {name} is incomplete (a run that was killed); left out.")
    if not text[:end].strip():
        return pd.DataFrame(), notes
    try:
        with warnings.catch_warnings():  # of rows with more cells than there are names of columns
            warnings.simplefilter("error", pd.errors.ParserWarning)
            table = pd.read_csv(
                io.StringIO(text[:end]),
                dtype=object,
                keep_default_na=False,
                on_bad_lines="skip",
                index_col=False,
            )
    except (ValueError, pd.errors.ParserWarning) as broken:
        raise RunFolderError(f"{name} in '{run_dir}' is no CSV: {broken}") from broken
    if missing := sorted(needed - set(table.columns)):
        raise RunFolderError(
            f"{name} in '{run_dir}' has no column {', '.join(missing)}; was it written by fedsim?"
        )
    return table.fillna("").map(restored), notes


def _last_whole_row(text: str) -> int:
    """The end of the last complete row: a newline with an even number of quotes before it."""
    end, quotes = text.rfind("\n"), text.count('"')
    quotes -= text.count('"', end + 1)
    while end >= 0 and quotes % 2:
        start = text.rfind("\n", 0, end)
        quotes -= text.count('"', start + 1, end)
        end = start
    return end + 1


def read_findings(run_dir: Path) -> "tuple[pd.DataFrame, list[str]]":
    """Read findings.csv with numbers as numbers, one row an attack and metric.

    Returns:
        The rows, with a column `counted`, what goes into an average (the value, the baseline of a
        broken attack, NaN for a denied one), and notes on what had to be left out.

    Raises:
        RunFolderError: The file is no CSV, not of a run, or missing although attacks have ended.
    """
    import pandas as pd

    rows, notes = read_rows(run_dir, "findings.csv", NEEDED)
    if inside(run_dir, "findings.csv") is None and inside(run_dir, "attacks.jsonl"):
        raise RunFolderError(
            f"'{run_dir}' has no findings.csv, although attacks have ended in it (attacks.jsonl). "
            "Put back the file that the run wrote"
        )
    for column in COLUMNS:
        if column not in rows:
            rows[column] = ""
    known = rows["status"].isin(STATUSES)
    if not known.all():
        notes.append(f"{int((~known).sum())} rows of findings.csv have no known status; left out.")
    rows = rows[known].copy()
    for column in NUMBERS:
        rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    placed = rows["round"].abs() < math.inf
    if not placed.all():
        notes.append(f"{int((~placed).sum())} rows of findings.csv have no round; left out.")
    rows = rows[placed].copy()
    rows["attempt"] = rows["attempt"].fillna(1)
    rows["label"] = rows["label"].where(rows["label"] != "", rows["adversary"])
    rows = _one_row_a_metric(rows)
    key = ["point", "seed", "round", "client", "victim", "label", "metric"]
    rows = rows.sort_values("attempt", kind="stable").drop_duplicates(key, keep="last").sort_index()
    for by in (["point", "label", "metric"], ["label", "metric"]):
        usual = rows.groupby(by, sort=False)["baseline"].transform("mean")
        broken = rows["status"].isin(["failed", "timeout"])
        rows["baseline"] = rows["baseline"].where(~broken, rows["baseline"].fillna(usual))
    rows["value"] = rows["value"].where(rows["status"].isin(["ok", "unverified"]))
    rows["counted"] = rows["value"].where(rows["status"] == "ok", rows["baseline"])
    rows["counted"] = rows["counted"].where(~rows["status"].isin(UNCOUNTED))
    return rows.reset_index(drop=True), notes


def read_utility(run_dir: Path) -> "tuple[pd.DataFrame, list[str]]":
    """Read utility.csv, one row for each round, metric and sweep point.

    Returns:
        The rows (columns round, metric, value, point), and notes on what had to be left out.

    Raises:
        RunFolderError: The file is no CSV, or not of a run.
    """
    import pandas as pd

    rows, notes = read_rows(run_dir, "utility.csv", {"round", "metric", "value"})
    for column in ("round", "metric", "value", "point"):
        if column not in rows:
            rows[column] = ""
    for column in ("round", "value"):
        rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    return rows.drop_duplicates(["point", "round", "metric"], keep="last"), notes


def split_point(point: str) -> tuple[str, str]:
    """Split the name of a sweep's point into its seed and its other values.

    Args:
        point: Such as `seed=7,defenses.0.sigma=0.1`.

    Returns:
        The seed, "" if the sweep has none, and the rest, here `defenses.0.sigma=0.1`.
    """
    parts = point_parts(point)
    seed = next((value for key, value in parts if key == "seed"), "")
    return seed, ",".join(
        f"{key}={value}" if key else value for key, value in parts if key != "seed"
    )


def point_parts(point: str) -> list[tuple[str, str]]:
    """The keys and values in the name of a sweep's point; commas within a value separate none."""
    parts = re.split(r",(?=[A-Za-z_][\w.-]*=)", point) if point else []
    found = (part.partition("=") for part in parts)
    return [(key, value) if equals else ("", key) for key, equals, value in found]


def probe_of(victim: str) -> str:
    """The probe of a victim's key: `c0003-p00` of `r0001-c0003-p00`; "" for a client's update."""
    found = re.fullmatch(r"r\d+-(c\d+-p\d+)", victim)
    return found[1] if found else ""


def unit_of(victim: str) -> str:
    """What a victim's key names without its round: a client, a sum of clients, or a probe."""
    return re.sub(r"^r\d+-", "", victim)


def printable(text: str) -> str:
    """A line without control characters, which names from clients and plugins may hold."""
    return "".join(char for char in " ".join(text.splitlines()) if char.isprintable())


def _one_row_a_metric(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Copy the single row of a broken attack, which has no metric, to each of its metrics."""
    known: dict[str, list[str]] = {}
    for label, metric in zip(rows["label"], rows["metric"], strict=True):
        if metric and metric not in known.setdefault(label, []):
            known[label].append(metric)
    rows["metric"] = [
        [metric] if metric else known.get(label) or [""]
        for label, metric in zip(rows["label"], rows["metric"], strict=True)
    ]
    return rows.explode("metric", ignore_index=True)


class Measures(dict[str, Measure]):
    """How each metric is read, by name; the title of an unknown metric is its name."""

    def __missing__(self, metric: str) -> Measure:
        return Measure(
            metric or "no metric",
            "A metric that this report has no words for; higher is taken as better.",
            "value {value} over {n} updates",
        )

    def rank(self, metric: str) -> float:
        """The rank of a metric; the one with the lowest rank is an adversary's main metric."""
        return self[metric].rank

    def main(self, scored: Iterable[tuple[str, str]]) -> dict[str, str]:
        """The main metric of each adversary, from pairs of its label and a metric."""
        found: dict[str, str] = {}
        for label, metric in scored:
            found[label] = min(found.get(label, metric), metric, key=self.rank)
        return found


MEASURES = Measures(FORMAT.validate_json(Path(__file__).with_name("metrics.json").read_bytes()))
"""fedsim's own metrics, for run folders without metrics.json."""


def budget(metric: str) -> str | None:
    """Which part of a privacy budget a metric of utility.csv is: "epsilon", "delta" ...; or None.

    If several defenses report, the name of the defense comes first: `client-dp.1 epsilon`.
    """
    part = metric.rpartition(" ")[2]
    return part if part in ("epsilon", "epsilon_released", "delta") else None


def read_measures(run_dir: Path) -> tuple[Measures, list[str]]:
    """How the metrics of a run folder are read, and a note if its metrics.json cannot be read.

    Metrics that the file lacks are read as in fedsim's own table.
    """
    path = inside(run_dir, "metrics.json")
    if path is None:
        return MEASURES, []
    try:
        found = FORMAT.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return MEASURES, ["metrics.json cannot be read; metrics are shown as fedsim knows them."]
    for name in MEASURES.keys() & found.keys():  # an earlier version did not write what they are of
        found[name] = replace(found[name], what=found[name].what or MEASURES[name].what)
    return Measures(MEASURES | found), []
