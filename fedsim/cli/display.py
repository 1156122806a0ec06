"""Terminal output: progress of a run, its summary, and descriptions of plugins."""

import math
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from fedsim.attacking.progress import AttackProgress
from fedsim.metric import Measure
from fedsim.metrics import installed
from fedsim.report import summary, utility_summary
from fedsim.report.intervals import FEWEST, interval_text
from fedsim.runs.reading import Measures, budget, read_measures

LINES, PAUSE = 20, 10.0
"""Off a terminal a run prints about as many lines of rounds, and more if a round takes longer than
these seconds."""


class Display:
    """An observer that shows rounds, clients, running attacks and leakage so far.

    A terminal gets a live display, any other output a plain line for each round, or for every
    n-th of many short rounds.

    Args:
        console: Where to print.
        quiet: Whether to print nothing.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._live: Live | None = None
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._rounds = self._bars.add_task("rounds", total=1, note="")
        self._attacks = self._bars.add_task("attacks", total=0, note="")
        self._queued = 0
        self._done = 0
        self._said = 0.0
        self._sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])

    def __enter__(self) -> "Display":
        if self._console.is_terminal and not self._quiet:
            self._live = Live(self._picture(), console=self._console, refresh_per_second=8)
            self._live.__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        if self._live is not None:
            self._live.update(self._picture())
            self._live.__exit__(*reason)

    def __call__(self, event: str, **fields: Any) -> None:
        """Show an event of a run."""
        handle = getattr(self, f"_on_{event}", None)
        if handle is not None and not self._quiet:
            handle(**fields)
            if self._live is not None:
                self._live.update(self._picture())

    def _on_started(self, scenario: str, points: list[str], engine: str, **_: Any) -> None:
        several = f", {len(points)} points" if len(points) > 1 else ""
        self._say(f"scenario {scenario}{several}, engine {engine}")

    def _on_recording(self, keep: str, bytes: int, max_bytes: int, **_: Any) -> None:
        full = ", the limit of record.max_bytes" if bytes >= max_bytes else ""
        self._say(f"recording {_what(keep)}: at most about {decimal(bytes)}{full}")

    def _on_recorded(self, updates: int, rounds: int, bytes: int, **_: Any) -> None:
        if rounds:
            what = f"{updates} update{'s' * (updates > 1)}" if updates else "the global model"
            self._say(f"recorded {what} of {rounds} round{'s' * (rounds > 1)}, {decimal(bytes)}")

    def _on_attacking(self, attacks: int, adversaries: str, **_: Any) -> None:
        several = f"{attacks} attack{'s' * (attacks > 1)} on recorded updates, as in {adversaries}"
        self._say(several if attacks else "nothing left to attack: all of these attacks ended")

    def _on_point(self, point: str, rounds: int, **_: Any) -> None:
        self._bars.reset(self._rounds, total=rounds)
        self._sums.clear()
        if point:
            self._say(f"point {point}")

    def _on_caution(self, text: str, **_: Any) -> None:
        self._say(f"warning: {text}")

    def _on_training(self, round: int, clients: int, **_: Any) -> None:
        self._bars.update(self._rounds, note=f"round {round}: {clients} clients training")

    def _on_attacks(self, queued: int, pending: int, **_: Any) -> None:
        self._queued += queued
        self._bars.update(self._attacks, total=self._queued, note=f"{pending} in flight")

    def _on_progress(self, progress: AttackProgress, **_: Any) -> None:
        left = self._queued - self._done
        self._bars.update(self._attacks, note=f"{left} in flight; {progress}")

    def _on_findings(self, findings: list[Any], pending: int, **_: Any) -> None:
        self._done += 1
        self._bars.update(self._attacks, completed=self._done, note=f"{pending} in flight")
        for row in findings:
            entry = self._sums[(row.label, row.metric)]
            # As in the report, an attack that broke counts as a random guess.
            value = row.value if row.status == "ok" else row.baseline
            if row.status != "denied" and value is not None:
                entry[0] += 1
                entry[1] += value
                entry[2] += math.nan if row.baseline is None else row.baseline
        if findings and findings[0].status != "ok":
            row = findings[0]
            self._say(f"{row.victim} {row.label}: {row.status}: {row.error}")

    def _on_round(self, round: int, of: int, **fields: Any) -> None:
        self._bars.update(self._rounds, completed=round)
        due = round in (1, of) or round % max(1, of // LINES) == 0
        if self._live is None and round and (due or time.monotonic() - self._said >= PAUSE):
            self._said = time.monotonic()
            numbers = {k: v for k, v in fields.items() if isinstance(v, float)}
            utility = "  ".join(f"{name} {_number(name, value)}" for name, value in numbers.items())
            leakage = self._leakage()
            so_far = f"  leaked so far: {leakage}" if leakage else ""
            self._say(f"round {round}/{of}  {utility}{so_far}")

    def _leakage(self) -> str:
        """The mean of each adversary's main metric so far, beside chance."""
        measures = Measures({name: metric.shown for name, metric in installed().items()})
        parts = []
        for label, metric in measures.main(self._sums).items():
            count, total, chance = self._sums[(label, metric)]
            how = measures[metric]
            if count:
                means = f"{how.show(total / count)} (chance {how.show(chance / count)})"
                parts.append(f"{label}: {how.title.lower()} {means}")
        return ", ".join(parts)

    def _say(self, text: str) -> None:
        # Names in a line can come from clients, so markup and control characters are removed.
        clean = "".join(char for char in text if char.isprintable())
        self._console.print(escape(clean), highlight=False)

    def _picture(self) -> Group:
        leakage = self._leakage()
        return Group(self._bars, Text(f"leakage so far: {leakage}" if leakage else ""))


def _what(keep: str) -> str:
    return "every update" if keep == "all" else "attacked updates"


def _number(metric: str, value: float) -> str:
    return f"{value:.3g}" if budget(metric) else f"{value:.3f}"


def print_facts(console: Console, facts: dict[str, Any]) -> None:
    """Print the description of a plugin (`Entry.describe`)."""
    kind = f"{facts['kind']} of {facts['task']}" if "task" in facts else facts["kind"]
    console.print(f"{facts['name']} ({kind})", style="bold", markup=False, highlight=False)
    for paragraph in facts["text"].split("\n\n"):
        code = paragraph.startswith("    ")
        text = paragraph if code else " ".join(paragraph.split())
        console.print(text + "\n", markup=False, highlight=False)
    lines = ("attacks", "needs", "recovers", "cites", "reads", "title", "means")
    for key in (*lines, "better for the attacker", "range"):
        if facts.get(key):
            value = facts[key] if isinstance(facts[key], str) else ", ".join(facts[key])
            console.print(f"{key}: {value}", markup=False, highlight=False)
        if key == "needs":
            for setting, more in facts.get("needs_with", {}).items():
                console.print(
                    f"with {setting} also: {', '.join(more)}", markup=False, highlight=False
                )
    for each in facts.get("requires", ()):
        console.print(f"requires {each}", markup=False, highlight=False)
    if facts.get("settings"):
        table = Table("setting", "type", "default", "meaning", box=None)
        for setting in facts["settings"]:
            table.add_row(*(escape(setting[k]) for k in ("name", "type", "default", "description")))
        console.print(table)


def print_summary(console: Console, folder: Path) -> None:
    """Print what leaked beside chance; for a sweep one line for each point, with the utility.

    Seeds are repetitions: of a point with several, means are printed, with 95 % intervals from
    three seeds on. Without a sweep, the accuracy and the privacy that defenses have spent are
    printed too.
    """
    rows, utility, measures = summary(folder), utility_summary(folder), read_measures(folder)[0]
    seeds = {row["seeds"] for row in (*rows, *utility)}
    if len({row["point"] for row in (*utility, *rows)}) > 1:
        console.print(_points(rows, utility, measures))
        if max(seeds) > 1:
            _print_differences(console, rows, utility, measures)
    else:
        spent = [row for row in utility if budget(row["metric"])]
        trained = [row for row in utility if row["metric"] == "accuracy"]
        for words, found in (("privacy spent", spent), ("in the end", trained)):
            if found:
                text = ", ".join(f"{row['metric']} {_utility(row)}" for row in found)
                console.print(f"{words}: {text}", markup=False, highlight=False)
        if rows:
            _print_leakage(console, rows, measures)
    if 1 < (most := max(seeds, default=1)) < FEWEST:
        text = f"means over {most} seeds; an interval takes at least {FEWEST}"
        console.print(text, markup=False, highlight=False)
    elif most > 1:
        text = f"means over {most} seeds; in square brackets their 95 % interval"
        console.print(text, markup=False, highlight=False)


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
    """Print how points differ from the undefended one, on the same seeds and victims."""
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
    table = _titled(f"Less the undefended point ({', '.join(against)})", "point")
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


def _print_leakage(console: Console, rows: list[dict[str, Any]], measures: Measures) -> None:
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
        for status in ("failed", "timeout", "denied", "unverified"):
            attacked += f", {first[status]} {status}" if first[status] else ""
        main = [row for row in group if not measures[row["metric"]].detail] or group[:1]
        for row in group[:1] if first["denied"] == first["attacks"] else main:
            how = measures[row["metric"]]
            shown = [_mean(row, how), how.show(row["baseline"]), row["verdict"]]
            table.add_row(*map(escape, [name, attacked, how.title, *shown]))
            name = attacked = ""
    console.print(table)
    for label, group in groups.items():
        console.print(f"{label}: {group[0]['sentence']}", markup=False, highlight=False)
