"""What the rows of a run folder add up to: findings read, averaged, and put into words.

How an average is taken (the report says the same to its readers):

- an attack that failed or ran out of time counts as what a random guess scores on the same victim:
  an attacker whose attack breaks can still guess;
- where chance has no level (how an attack's own search went), a broken attack has no number;
- a denied attack never took place: it is counted and listed, and not averaged;
- of an attack that a resumed run tried again, the last attempt counts.
"""

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsim.errors import RunFolderError
from fedsim.report.intervals import interval
from fedsim.report.measures import MEASURES, Measure, Measures, parse

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "inside",
    "main_metrics",
    "read_findings",
    "read_measures",
    "read_rows",
    "summarise",
]

# The fields of `fedsim.records.Finding`, which cannot be imported here: it needs torch.
COLUMNS = [
    "scenario", "point", "seed", "round", "client", "victim", "adversary", "metric", "value",
    "baseline", "baseline_prior", "status", "error", "attempt", "seconds", "iterations", "granted",
    "label", "batch_size", "local_steps", "inclusion", "artifact",
]  # fmt: skip
NEEDED = {"round", "victim", "adversary", "metric", "value", "baseline", "status"}
NUMBERS = ("round", "value", "baseline", "baseline_prior", "attempt", "seconds", "iterations")
GAIN = Measure("Gain on chance", "", "", signed=True)
STATUSES = ("ok", "failed", "timeout", "denied")


def inside(run_dir: Path, relative: str, *, folder: bool = False) -> Path | None:
    """The regular file (or the folder) at a relative path in the run folder, or None.

    Refuses absolute paths, `..` and symbolic links: a run folder may come from someone else, and
    a report made of it must not carry files of this machine away.
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


def read_rows(run_dir: Path, name: str, needed: set[str]) -> "tuple[pd.DataFrame, list[str]]":
    """A CSV of the run folder as text columns, and notes on what had to be left out of it."""
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
        table = pd.read_csv(
            io.StringIO(text[:end]),
            dtype=str,
            keep_default_na=False,
            on_bad_lines="skip",
            index_col=False,
        )
    except ValueError as broken:
        raise RunFolderError(f"{name} in '{run_dir}' is no CSV: {broken}") from broken
    if missing := sorted(needed - set(table.columns)):
        raise RunFolderError(
            f"{name} in '{run_dir}' has no column {', '.join(missing)}; was it written by fedsim?"
        )
    return table.fillna(""), notes


def _last_whole_row(text: str) -> int:
    """Where the last complete row ends: a newline with every quote before it closed."""
    end, quotes = text.rfind("\n"), text.count('"')
    quotes -= text.count('"', end + 1)
    while end >= 0 and quotes % 2:
        start = text.rfind("\n", 0, end)
        quotes -= text.count('"', start + 1, end)
        end = start
    return end + 1


def read_findings(run_dir: Path) -> "tuple[pd.DataFrame, list[str]]":
    """Findings with numbers as numbers, one row an attack and metric, and `counted`: what goes
    into an average (the value, the baseline of a broken attack, NaN for a denied one).
    """
    import pandas as pd

    rows, notes = read_rows(run_dir, "findings.csv", NEEDED)
    for column in COLUMNS:
        if column not in rows:
            rows[column] = ""
    known = rows["status"].isin(STATUSES)
    if not known.all():
        notes.append(f"{int((~known).sum())} rows of findings.csv have no known status; left out.")
    rows = rows[known].copy()
    for column in NUMBERS:
        rows[column] = pd.to_numeric(rows[column], errors="coerce").astype(float)
    rows["attempt"] = rows["attempt"].fillna(1)
    rows["label"] = rows["label"].where(rows["label"] != "", rows["adversary"])
    rows = _one_row_a_metric(rows)
    key = ["point", "seed", "round", "client", "victim", "label", "metric"]
    rows = rows.sort_values("attempt", kind="stable").drop_duplicates(key, keep="last").sort_index()
    for by in (["point", "label", "metric"], ["label", "metric"]):
        usual = rows.groupby(by, sort=False)["baseline"].transform("mean")
        broken = rows["status"].isin(["failed", "timeout"])
        rows["baseline"] = rows["baseline"].where(~broken, rows["baseline"].fillna(usual))
    rows["value"] = rows["value"].where(rows["status"] == "ok")
    rows["counted"] = rows["value"].where(rows["status"] == "ok", rows["baseline"])
    rows["counted"] = rows["counted"].where(rows["status"] != "denied")
    return rows.reset_index(drop=True), notes


def _one_row_a_metric(rows: "pd.DataFrame") -> "pd.DataFrame":
    """An attack that broke may have left one row without a metric: it counts in every metric."""
    known: dict[str, list[str]] = {}
    for label, metric in zip(rows["label"], rows["metric"], strict=True):
        if metric and metric not in known.setdefault(label, []):
            known[label].append(metric)
    rows["metric"] = [
        [metric] if metric else known.get(label) or [""]
        for label, metric in zip(rows["label"], rows["metric"], strict=True)
    ]
    return rows.explode("metric", ignore_index=True)


def read_measures(run_dir: Path) -> tuple[Measures, list[str]]:
    """How the metrics of a run folder are read, and a note if its metrics.json is unreadable."""
    path = inside(run_dir, "metrics.json")
    if path is None:
        return MEASURES, []
    try:
        return parse(path.read_bytes()), []
    except (OSError, ValueError):
        return MEASURES, ["metrics.json cannot be read; metrics are shown as fedsim knows them."]


def main_metrics(rows: "pd.DataFrame", measures: Measures) -> dict[str, str]:
    """The metric that stands for each adversary, by label."""
    return {
        str(label): min(metrics.unique(), key=measures.rank)
        for label, metrics in rows.groupby("label", sort=False)["metric"]
    }


def summarise(rows: "pd.DataFrame", measures: Measures) -> list[dict[str, Any]]:
    """One row a sweep point, adversary label and metric; see `fedsim.report.summary`."""
    found = []
    for (point, label, metric), part in rows.groupby(["point", "label", "metric"], sort=False):
        how = measures[str(metric)]
        counts = {status: int((part["status"] == status).sum()) for status in STATUSES}
        counted = part[part["counted"].notna()]
        values = counted["counted"].tolist()
        scored = part["value"].dropna().tolist()
        low, high = interval(values, how)
        ends = (min, max) if how.lower else (max, min)
        row: dict[str, Any] = {
            "point": str(point), "label": str(label), "adversary": str(part["adversary"].iloc[0]),
            "metric": str(metric), "attacks": len(part), **counts, "n": len(values),
            "mean": _mean(values), "low": low, "high": high,
            "baseline": _mean(counted["baseline"].dropna().tolist()),
            "baseline_prior": _mean(counted["baseline_prior"].dropna().tolist()),
            "best": ends[0](scored, default=None), "worst": ends[1](scored, default=None),
            "lower_is_better": how.lower, **_successes(part),
        }  # fmt: skip
        gains = (counted["counted"] - counted["baseline"]).dropna().tolist()
        row["verdict"] = _verdict(row, how, gains)
        why = next((" ".join(error.split()) for error in part["error"] if error), "")
        row["sentence"] = _sentence(row, how, scored, why)
        found.append(row)
    return found


def _successes(part: "pd.DataFrame") -> dict[str, int | float | None]:
    """How many attacks recovered every example, and the iterations that those took to their end.

    Failed starts count, and what comes after the examples are recognisable.
    None for other metrics than `recovered`; the iterations also where none were counted.
    """
    found: dict[str, int | float | None]
    found = dict.fromkeys(("successes", "iterations_median", "iterations_mean"))
    if (part["metric"] == "recovered").all():
        took = part.loc[part["value"] == 1, "iterations"]
        found["successes"] = len(took)
        if took.sum() > 0:
            found["iterations_median"] = float(took.median())
            found["iterations_mean"] = float(took.mean())
    return found


def _mean(values: list[float]) -> float | None:
    mean = sum(values) / len(values) if values else math.nan
    return None if math.isnan(mean) else mean


def _verdict(row: Mapping[str, Any], how: Measure, gains: list[float]) -> str:
    """Against chance on the same victims. gains: value - baseline, victim by victim.

    Yes/no: whether Wilson's interval holds the mean baseline. Otherwise whether the t interval of
    the gains holds zero: victims differ in what chance gives, so they are compared in pairs.
    """
    if row["denied"] == row["attacks"]:
        return "denied"
    if not how.leaks:
        return "about the attack"
    if row["mean"] is None or row["baseline"] is None or not gains:
        return "not known"
    gain = sum(gains) / len(gains) * (-1 if how.lower else 1)
    if row["low"] is None:
        return f"{'beats' if gain > 0 else 'at'} chance, few attacks"
    if how.kind == "yes/no":
        decided = not row["low"] <= row["baseline"] <= row["high"]
    else:
        low, high = interval(gains, GAIN)
        decided = low is not None and high is not None and not low <= 0 <= high
    if not decided:
        return "at chance"
    return "beats chance" if gain > 0 else "worse than chance"


def _ended(row: Mapping[str, Any]) -> list[str]:
    """How many attacks ended without an answer, and how."""
    ways = {"failed": "failed", "timeout": "ran out of time"}
    return [f"{row[status]} {way}" for status, way in ways.items() if row[status]]


def _sentence(row: Mapping[str, Any], how: Measure, scored: list[float], why: str) -> str:
    """A row in words. why: the error of its first attack that has one."""
    if row["n"] == 0:
        if row["denied"] == row["attacks"]:
            return f"denied on all updates ({row['attacks']}){f': {why}' if why else ''}"
        attacked = f"{row['attacks']} update{'' if row['attacks'] == 1 else 's'} attacked"
        return "; ".join([", ".join([attacked, *_ended(row)]), "nothing to average"])
    parts = [how.say(row["mean"], scored, row["n"])]
    if row["baseline"] is not None:
        parts.append(f"chance {how.show(row['baseline'])}")
    if how.lower:
        parts[-1] += " (lower is better for the attacker)"
    if row["iterations_median"] is not None:
        successes = f"{row['successes']} success{'' if row['successes'] == 1 else 'es'}"
        median = f"{row['iterations_median']:g}"
        parts.append(f"iterations to success: median {median} over {successes}")
    if broken := _ended(row):
        parts.append(f"{' and '.join(broken)}, {'counted as a guess' if how.leaks else 'left out'}")
    if row["denied"]:
        parts.append(f"{row['denied']} denied, not counted")
    return "; ".join(parts)
