"""What a person sees while a run goes on: a live display, or plain lines."""

from collections import defaultdict
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from fedsim.report.measures import MEASURES, measure

__all__ = ["Display"]


class Display:
    """An observer that shows rounds, clients, attacks in flight and leakage so far.

    On a terminal a live display; otherwise a plain line a round, so that logs stay readable.
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
        """Take in one event of a run."""
        handle = getattr(self, f"_on_{event}", None)
        if handle is not None and not self._quiet:
            handle(**fields)
            if self._live is not None:
                self._live.update(self._picture())

    def _on_started(self, scenario: str, points: list[str], engine: str, **_: Any) -> None:
        several = f", {len(points)} points" if len(points) > 1 else ""
        self._say(f"scenario {scenario}{several}, engine {engine}")

    def _on_point(self, point: str, rounds: int, **_: Any) -> None:
        self._bars.reset(self._rounds, total=rounds)
        if point:
            self._say(f"point {point}")

    def _on_training(self, round: int, clients: int, **_: Any) -> None:
        self._bars.update(self._rounds, note=f"round {round}: {clients} clients training")

    def _on_attacks(self, queued: int, pending: int, **_: Any) -> None:
        self._queued += queued
        self._bars.update(self._attacks, total=self._queued, note=f"{pending} in flight")

    def _on_findings(self, findings: list[Any], pending: int, **_: Any) -> None:
        self._done += 1
        self._bars.update(self._attacks, completed=self._done, note=f"{pending} in flight")
        for row in findings:
            entry = self._sums[(row.label, row.metric)]
            if row.status == "ok" and row.value is not None:
                entry[0] += 1
                entry[1] += row.value
                entry[2] += row.baseline or 0.0
        if findings and findings[0].status != "ok":
            row = findings[0]
            self._say(f"{row.victim} {row.label}: {row.status}: {row.error[:200]}")

    def _on_round(self, round: int, of: int, **fields: Any) -> None:
        self._bars.update(self._rounds, completed=round)
        if round and self._live is None:
            numbers = {k: v for k, v in fields.items() if isinstance(v, float)}
            utility = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items())
            self._say(f"round {round}/{of}  {utility}  {self._leakage()}")

    def _leakage(self) -> str:
        """Each adversary's main metric so far, and what chance gives."""
        main: dict[str, str] = {}
        for label, metric in self._sums:
            if label not in main or _rank(metric) < _rank(main[label]):
                main[label] = metric
        parts = []
        for label, metric in main.items():
            count, total, chance = self._sums[(label, metric)]
            how = measure(metric)
            if count:
                means = f"{how.show(total / count)} (chance {how.show(chance / count)})"
                parts.append(f"{label}: {how.title.lower()} {means}")
        return ", ".join(parts)

    def _say(self, text: str) -> None:
        # Names in a line can come from clients: no markup, no control characters.
        clean = "".join(char for char in text if char.isprintable())
        self._console.print(escape(clean), highlight=False)

    def _picture(self) -> Group:
        leakage = self._leakage()
        return Group(self._bars, Text(f"leakage so far: {leakage}" if leakage else ""))


def _rank(metric: str) -> int:
    order = list(MEASURES)
    return order.index(metric) if metric in order else len(order)
