"""Terminal output: what leaked in a run, and what its model learned."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from fedsim.metric import Measure
from fedsim.report import summaries
from fedsim.report.intervals import FEWEST, interval_text
from fedsim.runs.reading import Measures, budget, printable

NAMED = 4
"""The number of leaking points that are named; the others are counted."""


def print_summary(console: Console, folder: Path) -> None:
    """Print what leaked beside chance; for a sweep one line for each point, with the utility.

    Seeds are repetitions: of a point with several, means are printed, with 95 % intervals from
    three seeds on. Without a sweep, the accuracy and the privacy that defenses have spent are
    printed too.
    """
    read = summaries(folder)
    rows, verdict_rows, utility = read.leakage, read.verdicts, read.utility
    measures = read.measures
    seeds = {row["seeds"] for row in (*rows, *utility)}
    if len({row["point"] for row in (*utility, *rows)}) > 1:
        console.print(_points(rows, utility, measures))
        if max(seeds) > 1:
            _print_differences(console, rows, utility, measures)
        _print_verdicts(console, rows, verdict_rows, measures)
    else:
        spent = [row for row in utility if budget(row["metric"])]
        trained = [row for row in utility if row["metric"] == "accuracy"]
        for words, found in (("privacy spent", spent), ("in the end", trained)):
            if found:
                text = ", ".join(f"{row['metric']} {_utility(row)}" for row in found)
                _say(console, f"{words}: {text}")
        if rows:
            _print_leakage(console, rows, verdict_rows, measures)
    if 1 < (most := max(seeds, default=1)) < FEWEST:
        _say(console, f"means over {most} seeds; an interval takes at least {FEWEST}")
    elif most > 1:
        _say(console, f"means over {most} seeds; in square brackets their 95 % interval")


def _points(rows: list[dict[str, Any]], utility: list[dict[str, Any]], measures: Measures) -> Table:
    """A row for each point of a sweep: accuracy, privacy spent, each adversary's main metric."""
    points = list(dict.fromkeys(row["point"] for row in (*utility, *rows)))
    keys = {point.partition("=")[0] for point in points}
    alone = len(keys) == 1 and not any("," in point.split("(")[0] for point in points)
    table = _titled("In the end (in brackets: by chance)" if rows else "In the end")
    table.add_column(escape(keys.pop()) if alone else "point", overflow="fold", min_width=22)
    metrics = [
        metric
        for metric in dict.fromkeys(row["metric"] for row in utility)
        if metric == "accuracy" or (budget(metric) or "").startswith("epsilon")
    ]
    main = measures.main((row["label"], row["metric"]) for row in rows)
    titles = [_title(label, measures[metric]) for label, metric in main.items()]
    for title in (*(_stacked(metric.replace("_", " ")) for metric in metrics), *titles):
        table.add_column(escape(title), justify="right")
    trained = {(row["point"], row["metric"]): _utility(row) for row in utility}
    found = {  # by point and adversary
        (row["point"], row["label"]): row for row in rows if row["metric"] == main[row["label"]]
    }
    for point in points:
        cells = [trained.get((point, metric), "") for metric in metrics]
        for label, metric in main.items():
            how, mine = measures[metric], found.get((point, label))
            cells.append(f"{_mean(mine, how)} ({how.show(mine['baseline'])})" if mine else "")
        table.add_row(*map(escape, [point.partition("=")[2] if alone else point, *cells]))
    return table


def _print_differences(
    console: Console,
    rows: list[dict[str, Any]],
    utility: list[dict[str, Any]],
    measures: Measures,
) -> None:
    """Print how points differ from their baseline, on the same seeds and victims."""
    main = measures.main((row["label"], row["metric"]) for row in rows)
    found: dict[str, dict[str, str]] = {}  # by point, then by column
    against: dict[str, None] = {}
    for row in (*utility, *rows):
        label = row.get("label")
        column = _title(label, measures[row["metric"]]) if label else row["metric"]
        if row["against"] and row["metric"] == (main[label] if label else "accuracy"):
            found.setdefault(row["point"], {})[column] = row["difference_shown"]
            against[row["against"]] = None
    if not found:
        return
    columns = list(dict.fromkeys(column for cells in found.values() for column in cells))
    table = _titled(f"Less the point {', '.join(against)}", "point")
    for column in columns:
        table.add_column(escape(column), justify="right")
    for point, cells in found.items():
        table.add_row(*map(escape, [point, *(cells.get(column, "") for column in columns)]))
    console.print(table)


def _title(label: str, how: Measure) -> str:
    """The title of an adversary's column: its label, below it the words of the measure."""
    return f"{label}\n{_stacked(how.title.lower())}"


def _stacked(words: str) -> str:
    return words.replace(" ", "\n")


def _mean(row: dict[str, Any], how: Measure) -> str:
    """A mean, with its interval if that is one over seeds."""
    if row["seeds"] < FEWEST or row["mean"] is None:
        return how.show(row["mean"])
    return interval_text(row["mean"], row["low"], row["high"], how)


def _titled(title: str, *columns: Column | str) -> Table:
    return Table(*columns, title=escape(title), title_justify="left", title_style="bold", box=None)


def _utility(row: dict[str, Any]) -> str:
    if row["low"] is not None:
        return str(row["shown"])
    value = row["mean"]
    return f"{100 * value:.1f} %" if row["metric"] == "accuracy" else f"{value:.3g}"


def _print_verdicts(
    console: Console,
    rows: list[dict[str, Any]],
    verdict_rows: list[dict[str, Any]],
    measures: Measures,
) -> None:
    """Print at which points each adversary leaks, and what the table of points does not show.

    That is a metric that leaks more than the adversary's main one, and lost attacks.
    """
    main = measures.main((row["label"], row["metric"]) for row in rows)
    found = {(row["point"], row["label"]): row for row in rows}
    for label in main:
        mine = [one for one in verdict_rows if one["label"] == label]
        leaking = [one["point"] for one in mine if one["kind"] == "leaks"]
        where = f"{len(leaking) or 'none'} of {len(mine)} points"
        if 0 < len(leaking) < len(mine):
            where += f": {_named(leaking)}"
        _say(console, f"{label}: leaks at {where}")
        # Where too little was seen for a verdict, "none" must not be read as "it does not leak".
        better = [one["point"] for one in mine if one["kind"] == "guessed"]
        few = [one["point"] for one in mine if "too few to tell" in one["badge"]]
        if better:
            said = "better than chance, not shown to be better than a guess from public data"
            _say(console, f"{label}: {said}: {_named(better)}")
        if few:
            _say(console, f"{label}: too few attacks to tell: {_named(few)}")
        for badge in dict.fromkeys(one["badge"] for one in mine if one["kind"] == "unknown"):
            where = _named([one["point"] for one in mine if one["badge"] == badge])
            _say(console, f"{label}: {badge}: {where}")
    for one in verdict_rows:
        row, name = found[one["point"], one["label"]], f"{one['label']} at {one['point']}"
        if one["kind"] == "leaks" and one["metric"] != main[one["label"]]:
            _say(console, f"{name}: leaks most by another measure. {one['sentence']}")
        if lost := _lost(row):
            _say(console, f"{name}: {lost}")


def _named(points: list[str]) -> str:
    """The first of some points by name, and the number of the others."""
    more = len(points) - NAMED
    return "; ".join(points[:NAMED]) + (f"; {more} more" if more > 0 else "")


def _say(console: Console, text: str) -> None:
    """Print a line as it is, without markup and control characters."""
    console.print(printable(text), markup=False, highlight=False)


def _lost(row: dict[str, Any]) -> str:
    """How many attacks have no score, or one that does not count."""
    ways = ("failed", "timeout", "denied", "unverified")
    return ", ".join(f"{row[status]} {status}" for status in ways if row[status])


def _print_leakage(
    console: Console,
    rows: list[dict[str, Any]],
    verdict_rows: list[dict[str, Any]],
    measures: Measures,
) -> None:
    """Print who was attacked and the main measures of what leaked; the report has the others."""
    place = {row["label"]: i for i, row in enumerate(rows)}
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: (place[row["label"]], measures.rank(row["metric"]))):
        groups.setdefault(row["label"], []).append(row)
    numbers = (Column(name, justify="right") for name in ("leaked", "by chance"))
    table = _titled("What leaked", "adversary", "attacked", "measure", *numbers, "")
    for label, group in groups.items():
        first = group[0]
        name, attacked = label, f"{first['attacks']} update{'' if first['attacks'] == 1 else 's'}"
        attacked += f", {lost}" if (lost := _lost(first)) else ""
        main = [row for row in group if not measures[row["metric"]].detail] or group[:1]
        for row in group[:1] if first["denied"] == first["attacks"] else main:
            how = measures[row["metric"]]
            shown = [_mean(row, how), how.show(row["baseline"]), row["verdict"]]
            table.add_row(*map(escape, [name, attacked, how.title, *shown]))
            name = attacked = ""
    console.print(table)
    verdict = {one["label"]: one for one in verdict_rows}
    for label, group in groups.items():
        if said := verdict[label]["sentence"]:
            _say(console, f"{label}: {verdict[label]['badge']}. {said}")
        _say(console, f"{label}: {group[0]['sentence']}")
