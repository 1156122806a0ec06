"""Curves of a run in TensorBoard and MLflow, as the scenario's table `[sinks]` asks for.

A sink observes the events of a run and changes no result. If it fails, that is said once, and the
run goes on without it.

tensorboard   event files
mlflow        runs on a tracking server or in a database
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.settings import Sinks

MLFLOW = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
"""The environment of MLflow, as far as it is not set: with MLflow's own defaults a server that
cannot be reached holds up a run for minutes."""

Cell = tuple[int, str]
"""A round and the name of a curve."""


class Sink(Protocol):
    """Where the curves of one point of a run go. Any method may raise any exception."""

    def log(self, values: Mapping[str, float], round: int) -> None:
        """Add a value to each of several curves.

        Args:
            values: Finite values by the name of a curve, such as `utility/accuracy`.
            round: The round.
        """

    def close(self, status: str) -> None:
        """End the point; the status is "finished", "failed" or "interrupted"."""


class Curves:
    """An observer of a run that writes its utility and leakage to sinks.

    The curves are `utility/METRIC` and, as means over the attacks of a round, where a broken attack
    counts as a random guess, `leakage/LABEL/METRIC`.

    Args:
        sinks: The scenario's table.
        points: The scenario of each point, by name.
        folder: The run folder.
        caution: Called with a sentence when a sink fails, once for each sink.
    """

    def __init__(
        self,
        sinks: Sinks,
        points: Mapping[str, Scenario],
        folder: Path,
        caution: Callable[[str], None],
    ) -> None:
        self._sinks, self._points, self._folder, self._caution = sinks, points, folder, caution
        self._failed: set[str] = set()
        self._open: dict[str, Sink] = {}
        self._leaked: dict[Cell, dict[str, float]] = {}
        self._changed: set[Cell] = set()
        self._left = 0

    def __call__(self, event: str, **fields: Any) -> None:
        """Take notice of one event."""
        if event == "point":
            self._end("finished")
            self._begin(fields["point"])
        elif event == "round":
            values = {
                f"utility/{name}": value
                for name, value in fields.items()
                if name not in ("round", "of", "point") and isinstance(value, float)
            }
            self._log(values, fields["round"])
        elif event == "attacks":
            self._left += fields["queued"]
        elif event == "findings":  # of one attack; those of a group come one after the other
            for one in fields["findings"]:
                self._add(dataclasses.asdict(one))
            self._left -= 1
            if not self._left:
                self._flush()
        elif event == "failed":
            self._end("failed")
        elif event == "ended":  # the run's status is failed if any point is
            interrupted = fields["status"] == "interrupted"
            self._end("interrupted" if interrupted else "finished")

    def _begin(self, point: str) -> None:
        self._leaked.clear()
        for name, settings in self._sinks:
            if settings is not None and name not in self._failed:
                self._attempt(name, functools.partial(self._make, name, point))
        for row in self._earlier if self._open else ():
            if row["point"] == point:
                self._add(row)  # logged anew: the interrupted call may have left it out

    @functools.cached_property
    def _earlier(self) -> list[dict[str, str]]:
        """The findings of a run that is resumed."""
        path = self._folder / "findings.csv"
        return Ledger(self._folder).rows() if path.exists() else []

    def _make(self, name: str, point: str) -> None:
        scenario = self._points[point]
        if name == "tensorboard" and self._sinks.tensorboard is not None:
            from fedsim.sinks.tensorboard import TensorBoard

            self._open[name] = TensorBoard(self._sinks.tensorboard, self._folder, point, scenario)
        elif name == "mlflow" and self._sinks.mlflow is not None:
            for key, value in MLFLOW.items():
                os.environ.setdefault(key, value)
            from fedsim.sinks.mlflow import MLflow

            self._open[name] = MLflow(self._sinks.mlflow, point, scenario)

    def _attempt(self, name: str, job: Callable[[], None]) -> None:
        """Do something with a sink; if it fails, say so, and leave the sink alone from then on."""
        try:
            job()
        except Exception as error:  # of a library, a disk or a network: the run goes on
            self._failed.add(name)
            self._open.pop(name, None)
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            if isinstance(error, ImportError):
                why += f"; pip install '.[{name}]' installs it"
            self._caution(f"nothing more goes to {name}, and the run goes on: {why}")

    def _log(self, values: Mapping[str, float], round: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name, sink in [*self._open.items()] if finite else []:
            self._attempt(name, functools.partial(sink.log, finite, round))

    def _add(self, row: Mapping[str, Any]) -> None:
        """Take a finding into the mean of its round; a later attempt counts instead of it."""
        column = {"ok": "value", "failed": "baseline", "timeout": "baseline"}.get(row["status"])
        if row["metric"] and column and row[column] not in (None, ""):
            cell = (int(row["round"]), f"leakage/{row['label']}/{row['metric']}")
            self._leaked.setdefault(cell, {})[row["victim"]] = float(row[column])
            self._changed.add(cell)

    def _flush(self) -> None:
        """Log the means of the rounds in which attacks have ended since the last call."""
        rounds: dict[int, dict[str, float]] = {}
        for cell in sorted(self._changed):
            values = self._leaked[cell].values()
            rounds.setdefault(cell[0], {})[cell[1]] = sum(values) / len(values)
        self._changed.clear()
        for round, means in rounds.items():
            self._log(means, round)

    def _end(self, status: str) -> None:
        if status != "interrupted":  # the call that resumes the run has the mean of all attacks
            self._flush()
        self._left = 0
        for name, sink in [*self._open.items()]:
            self._attempt(name, functools.partial(sink.close, status))
        self._open.clear()
