"""Terminal output: progress of a run, and descriptions of plugins."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from fedsim.attacking.progress import Estimate, RunningAttacks, about
from fedsim.metrics import installed
from fedsim.runs.reading import UNCOUNTED, Measures, budget, printable

Sums = dict[tuple[str, str], list[float]]
"""The number of attacks, the sum of their scores, that of a guess's, and how many attacks ended, by
label and metric."""

LINES, PAUSE, SILENCE = 20, 10.0, 60.0
"""Off a terminal a run prints about as many lines of rounds, as many of other attacked rounds, more
if a round takes longer than PAUSE seconds, and one of attacks after SILENCE seconds without any."""

MOST_ROWS, MOST_CLIENTS = 16, 6
"""How many busy workers a terminal shows, and how many clients of each."""

MOST_CHARACTERS = 500
"""Length at which a failed attack's error is cut; findings.csv has more of it."""


class Display:
    """An observer that shows rounds, clients, running attacks and leakage.

    A terminal gets a live display: which attacks run where, how long all of them will take by the
    seconds of those that have ended, and the leakage so far. Any other output gets a plain line for
    each round, or for every n-th of many short rounds, with that round's own leakage: at once, or
    in a second line when its attacks have ended. While attacks take long, a line a minute says how
    far they are, if they report it.

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
        self._estimate = Estimate()
        self._running: tuple[RunningAttacks, ...] = ()
        self._workers = 1
        self._said = time.monotonic()
        self._sums = _sums()
        self._of = 0
        self._extra = 0
        self._open: Counter[int] = Counter()
        self._own: dict[int, Sums] = defaultdict(_sums)
        self._late: set[int] = set()
        self._ended = 0

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
        for one in (self._sums, self._open, self._own, self._late):
            one.clear()
        self._extra, self._ended, self._running, self._estimate = 0, 0, (), Estimate()
        if point:
            self._say(f"point {point}")

    def _on_caution(self, text: str, **_: Any) -> None:
        self._say(f"warning: {text}")

    def _on_training(self, round: int, clients: int, **_: Any) -> None:
        self._bars.update(self._rounds, note=f"round {round}: {clients} clients training")

    def _on_attacks(
        self, round: int, queued: int, labels: Mapping[str, int] | None = None, **_: Any
    ) -> None:
        self._queued += queued
        self._open[round] += queued
        self._estimate.queue(labels or {})
        self._note_attacks()

    def _on_running(self, running: tuple[RunningAttacks, ...], workers: int, **_: Any) -> None:
        self._running, self._workers = running, workers
        self._note_attacks()

    def _note_attacks(self) -> None:
        """The bar of attacks: how many are in flight, and how long they will take."""
        left = self._queued - self._done
        waiting = left - sum(len(call.clients) for call in self._running)
        seconds = self._estimate.left(self._workers, self._running, time.monotonic())
        note = f"{left} in flight" + (f", {waiting} of them queued" if waiting > 0 else "")
        note += f"; {about(seconds)}" if seconds is not None else ""
        self._bars.update(self._attacks, total=self._queued, completed=self._done, note=note)
        if self._live is None and left > 0 and time.monotonic() - self._said >= SILENCE:
            calls = (str(call.progress) for call in self._running[:MOST_ROWS] if call.progress)
            self._say("; ".join([f"{self._done} of {self._queued} attacks", note, *calls]))

    def _on_findings(self, findings: list[Any], **_: Any) -> None:
        self._done += 1
        if findings:
            self._estimate.end(findings[0].label, findings[0].seconds)
        self._note_attacks()
        for row in findings:
            # As in the report, an attack that broke counts as a random guess.
            value = row.value if row.status == "ok" else row.baseline
            if row.status not in UNCOUNTED and value is not None:
                for sums in (self._sums, *self._of_line(row.round)):
                    entry = sums[row.label, row.metric]
                    entry[0] += 1
                    entry[1] += value
                    entry[2] += math.nan if row.baseline is None else row.baseline
                    entry[3] += row.status == "ok"
        if not findings:
            return
        first = findings[0]
        if first.status != "ok":
            error = str(first.error)
            more = " ... (more in findings.csv)" if len(error) > MOST_CHARACTERS else ""
            said = f"{first.status}: {error[:MOST_CHARACTERS]}{more}"
            self._say(f"{first.victim} {first.label}: {said}")
        self._open[first.round] -= 1
        if first.round in self._late and not self._open[first.round]:
            self._late.remove(first.round)
            self._say(f"round {first.round}/{self._of}{self._leaked(first.round)}")

    def _on_round(self, round: int, of: int, **fields: Any) -> None:
        self._bars.update(self._rounds, completed=round)
        self._of = of
        due = round in (1, of) or round % max(1, of // LINES) == 0
        attacked = self._open[round] > 0 or round in self._own
        if attacked and not due and self._extra < LINES:
            self._extra, due = self._extra + 1, True
        if self._live is None and round and (due or time.monotonic() - self._said >= PAUSE):
            numbers = {k: v for k, v in fields.items() if isinstance(v, float)}
            utility = "  ".join(f"{name} {_number(name, value)}" for name, value in numbers.items())
            if (left := self._open[round]) > 0:
                self._late.add(round)
                leakage = f"  {left} attack{'s' * (left > 1)} in flight"
            else:
                leakage = self._leaked(round)
            self._say(f"round {round}/{of}  {utility}{leakage}")
        self._ended = round
        if round not in self._late:
            self._own.pop(round, None)

    def _of_line(self, round: int) -> list[Sums]:
        """The sums of a round, as long as its line may still be printed."""
        return [self._own[round]] if round > self._ended or round in self._late else []

    def _leaked(self, round: int) -> str:
        """What a round leaked, for its line."""
        text = _leakage(self._own.pop(round, {}))
        return f"  leaked in this round: {text}" if text else ""

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        self._console.print(printable(text), markup=False, highlight=False)

    def _picture(self) -> Group:
        leakage = _leakage(self._sums)
        parts: list[RenderableType] = [self._bars]
        if self._running:
            parts.append(RunningTable(self._running))
        parts.append(Text(f"leakage so far: {leakage}" if leakage else ""))
        return Group(*parts)


class RunningTable:
    """What each busy attack worker does, with the seconds since it began.

    Args:
        running: The calls of adversaries that run.
    """

    def __init__(self, running: Sequence[RunningAttacks]) -> None:
        self._running = running

    def __rich__(self) -> Table:
        """The table at this moment; a terminal draws it again several times a second."""
        nodes = any(call.node for call in self._running)
        names = ("adversary", "round", "client", "iteration", "objective", "seconds")
        table = Table(*(["node"] if nodes else []), *names, box=None, pad_edge=False)
        for call in self._running[:MOST_ROWS]:
            now = call.progress
            clients = ", ".join(call.clients[:MOST_CLIENTS])
            clients += f", ... ({len(call.clients)})" if len(call.clients) > MOST_CLIENTS else ""
            table.add_row(
                *([call.node] if nodes else []),
                escape(call.adversary),
                f"{call.round}",
                clients,
                now.iterations if now else "",
                f"{now.objective:.3g}" if now else "",
                f"{time.monotonic() - call.since:.0f}",
            )
        if len(self._running) > MOST_ROWS:
            table.add_row(f"and {len(self._running) - MOST_ROWS} more")
        return table


def _sums() -> Sums:
    return defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])


def _leakage(sums: Sums) -> str:
    """The mean of each adversary's main metric, beside chance."""
    measures = Measures({name: metric.shown for name, metric in installed().items()})
    parts = []
    for label, metric in measures.main(sums).items():
        count, total, chance, ended = sums[label, metric]
        how = measures[metric]
        if ended:
            means = f"{how.show(total / count)} (chance {how.show(chance / count)})"
            parts.append(f"{label}: {how.title.lower()} {means}")
    return ", ".join(parts)


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
