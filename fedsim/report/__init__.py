"""The report of a run folder: one page with who was attacked and what leaked, beside chance.

It is made from the run folder alone. All text in the folder is treated as hostile, since it may
come from another machine. The page contains its pictures and its library, and loads nothing else.
"""

import contextlib
import json
import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedsim.errors import RunFolderError
from fedsim.report.exhibits import Exhibits, scores
from fedsim.report.leakage import summarise
from fedsim.report.pages import render, write_page
from fedsim.runs.reading import Measures, budget, inside, read_findings, read_measures, read_utility

if TYPE_CHECKING:
    import pandas as pd

ATTACK = ["seed", "round", "victim", "client", "label"]
ATTACKS, ERRORS, ERROR_LENGTH = 400, 12, 2000


def write_report(run_dir: Path, format: Literal["html", "markdown"] = "html") -> Path:
    """Write `report.html` or `report.md` into a run folder, in place of an earlier one.

    Args:
        run_dir: The run folder.
        format: "html" or "markdown".

    Returns:
        The path of the report.

    Raises:
        RunFolderError: The format is unknown, the folder cannot be read or holds no results, or the
            file cannot be written.
    """
    if format not in ("html", "markdown"):
        raise RunFolderError(f"no report format '{format}'; there are html and markdown")
    page = render(_content(Path(run_dir)), format)
    return write_page(Path(run_dir) / f"report.{'html' if format == 'html' else 'md'}", page)


def summary(run_dir: Path) -> list[dict[str, Any]]:
    """Summarise what leaked: a row for each sweep point, adversary label and metric.

    Failed and timed-out attacks count as the baseline; denied attacks do not count.

    Returns:
        Rows with the keys point, label, adversary, metric; attacks and how they ended (ok, failed,
        timeout, denied); n, mean, low, high (95 % interval, None with fewer than three values),
        baseline (a random guess), baseline_prior, best, worst, lower_is_better, verdict and
        sentence. For the metric `recovered`, successes is the number of attacks that recovered
        every example; iterations_median and iterations_mean are the iterations that those took,
        failed starts included. A value is None if there is no number.
    """
    rows = _findings(Path(run_dir))[0]
    return summarise(rows, read_measures(Path(run_dir))[0])


def final_utility(run_dir: Path) -> dict[str, dict[str, float]]:
    """The utility after the last round (accuracy, epsilon, ...), by sweep point and metric."""
    utility = _findings(Path(run_dir))[1]
    return {str(point): _final(part) for point, part in utility.groupby("point", sort=False)}


def _final(utility: "pd.DataFrame") -> dict[str, float]:
    """The last value of each metric of one point."""
    last = utility.groupby("metric", sort=False)["value"].last()
    return {str(metric): float(value) for metric, value in last.items()}


def _findings(run_dir: Path) -> "tuple[pd.DataFrame, pd.DataFrame, list[str]]":
    if not run_dir.is_dir():
        raise RunFolderError(f"there is no run folder '{run_dir}'")
    known = ("scenario.toml", "findings.csv", "utility.csv", "provenance.json")
    if not any(inside(run_dir, name) for name in known):
        raise RunFolderError(
            f"'{run_dir}' is no run folder: none of {', '.join(known)} is there. "
            "Give the folder that `fedsim run` wrote."
        )
    rows, notes = read_findings(run_dir)
    utility, more = read_utility(run_dir)
    utility = utility[utility["round"].notna()].sort_values("round", kind="stable")
    if rows.empty and utility.empty:
        raise RunFolderError(
            f"'{run_dir}' holds no findings and no utility: the run ended before its first round. "
            "Finish it with `fedsim run --resume`."
        )
    return rows, utility, notes + more


def _content(run_dir: Path) -> dict[str, Any]:
    """Everything that the templates show, as plain values."""
    rows, utility, notes = _findings(run_dir)
    measures, more = read_measures(run_dir)
    notes = notes + more
    scenario_text = _text(run_dir, "scenario.toml")
    try:
        scenario = tomllib.loads(scenario_text)
    except tomllib.TOMLDecodeError:
        scenario = {}
        notes.append("scenario.toml cannot be read; it is shown as it is.")
    provenance_text = _text(run_dir, "provenance.json")
    provenance: Any = {}
    with contextlib.suppress(ValueError, RecursionError):
        provenance = json.loads(provenance_text)
    provenance = provenance if isinstance(provenance, dict) else {}
    totals = summarise(rows, measures)
    main = measures.main(zip(rows["label"], rows["metric"], strict=True))
    points = list(dict.fromkeys([*rows["point"], *utility["point"]]))
    exhibits = Exhibits(run_dir, measures)
    pages = []
    for point in points:
        mine, use = rows[rows["point"] == point], utility[utility["point"] == point]
        table = [row for row in totals if row["point"] == point]
        pages.append(_point(point, mine, use, table, main, exhibits))
    if exhibits.refused:
        notes.append(
            f"{exhibits.refused} artifacts are not shown: missing, outside the run folder, too "
            "large, or of a kind that is not embedded."
        )
    name = provenance.get("scenario") or next(iter(rows["scenario"]), "") or run_dir.resolve().name
    versions = provenance.get("versions")
    listed = provenance.get("unknown")
    unknown = [str(key) for key in listed] if isinstance(listed, list) else []
    return {
        "name": str(name),
        "lead": _lead(rows, utility, scenario, len(points)),
        "points": pages,
        "notes": notes,
        "main": main,
        "utilities": list(dict.fromkeys(utility["metric"])),
        "measures": measures,
        "threat": _pairs(scenario.get("threat")),
        "training": _pairs(scenario.get("task"))
        + _pairs(scenario.get("training"))
        + _pairs({key: provenance[key] for key in ("optimizer",) if key in provenance})
        + [(key.partition(".")[2], "unknown") for key in unknown if "." in key],
        "defenses": [("unknown", "nobody stated what clients do to their updates")]
        if "defenses" in unknown
        else _named(scenario.get("defenses")),
        "scenario": scenario_text,
        "provenance": _pairs(
            {k: v for k, v in provenance.items() if k not in ("versions", "optimizer", "unknown")}
        ),
        "versions": _pairs(versions),
        "provenance_text": "" if provenance else provenance_text,
    }


def _point(
    point: str,
    rows: "pd.DataFrame",
    utility: "pd.DataFrame",
    totals: list[dict[str, Any]],
    main: dict[str, str],
    exhibits: Exhibits,
) -> dict[str, Any]:
    """The plot, tables and gallery of one sweep point, or of a run without a sweep."""
    from fedsim.report import charts

    adversaries = []
    for label in dict.fromkeys(row["label"] for row in totals):
        mine = rows[rows["label"] == label]
        table = [row for row in totals if row["label"] == label]
        chief = next((row for row in table if row["metric"] == main[label]), table[0])
        attacks = mine.drop_duplicates(["seed", "round", "client", "victim"])
        errors = attacks[attacks["error"] != ""].groupby(["status", "error"], sort=False).size()
        order = mine[mine["metric"] == chief["metric"]].sort_values(
            "counted", ascending=chief["lower_is_better"], kind="stable"
        )
        adversaries.append(
            {
                "label": label,
                "adversary": chief["adversary"],
                "chief": chief,
                "table": table,
                "statuses": attacks["status"].value_counts().to_dict(),
                "seconds": float(attacks["seconds"].sum()),
                "errors": [
                    {"status": status, "text": str(error)[:ERROR_LENGTH], "count": int(count)}
                    for (status, error), count in list(errors.items())[:ERRORS]
                ],
                "more_errors": max(0, len(errors) - ERRORS),
                "gallery": exhibits.of(order, mine),
            }
        )
    each = rows.groupby(ATTACK, sort=False)
    return {
        "name": point,
        "adversaries": adversaries,
        "chiefs": {adversary["label"]: adversary["chief"] for adversary in adversaries},
        "utility": _final(utility),
        "figure": charts.figure(rows, utility, main, exhibits.measures),
        "rounds": _rounds(rows, utility, main, exhibits.measures),
        "attacks": [
            {str(k): v for k, v in part.iloc[0].items()}
            | {"shown": scores(part, exhibits.measures)}
            for _, part in rows[each.ngroup() < ATTACKS].groupby(ATTACK, sort=False)
        ],
        "attack_count": each.ngroups,
    }


def _rounds(
    rows: "pd.DataFrame", utility: "pd.DataFrame", main: dict[str, str], measures: Measures
) -> dict[str, list[Any]]:
    """The numbers behind the plot, a row for each round."""
    import pandas as pd

    columns: dict[str, pd.Series[str]] = {}
    for metric, part in utility.groupby("metric", sort=False):
        columns[str(metric)] = part.set_index("round")["value"].map("{:.3g}".format)
    for label, metric in main.items():
        part = rows[(rows["label"] == label) & (rows["metric"] == metric)]
        means = part[part["counted"].notna()].groupby("round")[["counted", "baseline"]].mean()
        how = measures[metric]
        columns[f"{label}: {how.title}"] = means["counted"].map(how.show)
        columns[f"{label}: chance"] = means["baseline"].map(how.show)
    table = pd.DataFrame(columns, dtype=object).sort_index().fillna("–")
    body = [[f"{at:g}", *row] for at, row in zip(table.index, table.values.tolist(), strict=True)]
    return {"head": ["Round", *columns], "body": body}


def _lead(
    rows: "pd.DataFrame", utility: "pd.DataFrame", scenario: dict[str, Any], points: int
) -> str:
    """Two or three sentences about who was attacked."""
    parts = []
    if points > 1:
        parts.append(f"A sweep over {points} points; below, each on its own.")
    if rows.empty:
        parts.append("No adversary took part in this run: it shows utility alone.")
    else:
        each = ["point", "seed", "round", "client"]
        updates = rows[rows["status"] != "denied"].drop_duplicates(each)
        denied = rows[rows["status"] == "denied"].drop_duplicates([*each, "label"])
        training = scenario.get("training")
        every = training.get("clients") if isinstance(training, dict) else None
        clients = _count(updates["client"].nunique(), "client")
        if isinstance(every, int):
            clients = f"{updates['client'].nunique()} of {_count(every, 'client')}"
        parts.append(
            f"{_count(len(updates), 'update')} from {clients} "
            f"{'was' if len(updates) == 1 else 'were'} attacked in "
            f"{_count(rows['round'].nunique(), 'round')} by "
            f"{_count(rows['label'].nunique(), 'adversary', 'adversaries')}."
        )
        if len(denied):
            were = "was" if len(denied) == 1 else "were"
            parts.append(f"{_count(len(denied), 'attack')} {were} denied by the threat model.")
    accuracy = utility[utility["metric"] == "accuracy"]
    if points == 1 and not accuracy.empty:
        first, last = accuracy["value"].iloc[0], accuracy["value"].iloc[-1]
        parts.append(f"Meanwhile accuracy went from {100 * first:.0f} % to {100 * last:.0f} %.")
    if points == 1:
        parts += [f"Privacy spent: {text}." for text in _spent(utility)]
    return " ".join(parts)


def _spent(utility: "pd.DataFrame") -> list[str]:
    """The privacy that each defense has spent, such as `epsilon = 3.1 at delta = 1e-05`."""
    last, found = _final(utility), []
    for name, value in last.items():
        if (part := budget(name)) in ("epsilon", "epsilon_released"):
            delta = last.get(name.removesuffix(str(part)) + "delta", math.nan)
            spent = "infinite" if math.isinf(value) else f"{value:.3g}"
            found.append(f"{name} = {spent} at delta = {delta:.3g}")
    return found


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _text(run_dir: Path, name: str) -> str:
    path = inside(run_dir, name)
    return path.read_bytes()[:200_000].decode("utf-8", errors="replace") if path else ""


def _pairs(table: object) -> list[tuple[str, str]]:
    """Keys and values of a table, as text."""
    if not isinstance(table, dict):
        return []
    return [(str(key), _shown(value)) for key, value in table.items()]


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 300 else text[:299] + "…"


def _named(tables: object) -> list[tuple[str, str]]:
    """Plugins of a scenario: (name, settings)."""
    found = []
    for table in tables if isinstance(tables, list) else []:
        pairs = dict(_pairs(table))
        name = pairs.pop("name", "?")
        found.append((name, ", ".join(f"{key} = {value}" for key, value in pairs.items())))
    return found
