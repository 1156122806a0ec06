"""The writing half of the run folder. A process that is killed loses no finished row.

    scenario.toml  findings.csv  findings.parquet  utility.csv  metrics.json  points.csv  tape/
    artifacts/  checkpoint/  report.html  log.jsonl  provenance.json  attacks.jsonl

Rows are appended and synced during the run, those of utility before a checkpoint. `finish` sorts
them, so that a run's table depends neither on which attack ended first nor on interruptions.
"""

import contextlib
import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from fedsim.errors import RunFolderError
from fedsim.inert import restored, visible
from fedsim.libraries import read_csv
from fedsim.metrics.registry import described
from fedsim.records import Finding
from fedsim.runs import provenance
from fedsim.runs.attack_log import AttackLog, Ended
from fedsim.runs.files import make_folder, make_private
from fedsim.runs.growing import GrowingFiles
from fedsim.runs.provenance import SCHEMA, differences
from fedsim.runs.reading import COLUMNS
from fedsim.runs.repair import attack_of, attempt_of, forget_incomplete, mend_tables, with_inclusion
from fedsim.runs.tables import (
    LABEL,
    POINT,
    PUT_BACK,
    cells,
    holds_run,
    lines,
    not_writable,
    order_of,
    place,
    read_table,
    widen,
    writing,
)
from fedsim.scenario import Scenario

__all__ = ["COLUMNS", "SCHEMA", "Ledger", "place", "writing"]


class Ledger:
    """An existing run folder, open for appending; `create` makes one.

    Args:
        folder: A run folder that this or another process made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started = time.monotonic()
        self._files = GrowingFiles(folder)
        self.attacks = AttackLog(folder)
        widen(folder / "findings.csv", COLUMNS)

    @classmethod
    def create(
        cls,
        folder: Path,
        scenario: Scenario,
        *,
        resume: bool = False,
        growing: Collection[str] = (),
    ) -> "Ledger":
        """Make a run folder or, with `resume`, open an existing one.

        Args:
            folder: The folder.
            scenario: The scenario of the run.
            resume: Whether the folder holds a run to continue.
            growing: Keys, in any table of the scenario, that may differ from the run so far, such
                as "sweep", whose points are identified by their names.

        Raises:
            RunFolderError: The folder cannot be written, holds something else than it should, or
                is of another scenario.
        """
        ledger = cls(folder)
        try:
            exists = holds_run(folder, resume=resume)
            if exists:
                ledger._take_up(scenario, growing)
            else:
                make_private(folder, shared=scenario.record.shared)
                ledger._begin(scenario)
        except OSError as error:  # such as a name that is too long
            raise not_writable(folder, error) from error
        return ledger

    def _begin(self, scenario: Scenario) -> None:
        # First, so that what a kill leaves half made can be resumed.
        self._files.replace("scenario.toml", scenario.to_toml().encode())
        make_folder(self.folder / "artifacts")
        for name in ("findings.csv", "utility.csv"):
            self._files.write(name)
        self.describe_metrics(scenario)

    def describe_metrics(self, scenario: Scenario) -> None:
        """Write to metrics.json how the metrics of this run are read."""
        path, before = self.folder / "metrics.json", {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # of a run with other metrics
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        content = json.dumps(
            {**before, **described(scenario.build_metrics())}, indent=1, ensure_ascii=False
        )
        self._files.replace(path.name, content.encode())

    def same_scenario(
        self, scenario: Scenario, growing: Collection[str] = (), *, training: bool = False
    ) -> None:
        """Raise `RunFolderError` for a folder of another scenario.

        Args:
            scenario: The scenario.
            growing: Keys that may differ; see `create`.
            training: Whether only keys that training depends on are compared.
        """
        if differing := differences(self.folder, scenario, growing, training=training):
            raise RunFolderError(
                f"{self.folder} was run with another scenario than this one, which differs in "
                f"{', '.join(differing)}; resume it with the same scenario and --set options, or "
                "choose another --out"
            )

    def _take_up(self, scenario: Scenario, growing: Collection[str] = ()) -> None:
        if not growing and provenance.read(self.folder).get("schema") == 1:
            raise RunFolderError(
                f"{self.folder} is of an earlier version of fedsim (schema 1), which cannot be "
                "resumed. fedsim attack attacks what it recorded; or choose another --out"
            )
        if not growing:
            self.same_training()
        self.same_scenario(scenario, growing, training=not growing)
        self._files.replace("scenario.toml", scenario.to_toml().encode())
        self.describe_metrics(scenario)
        if not (self.folder / "log.jsonl").exists():  # killed before it began
            for name in ("findings.csv", "utility.csv"):
                if not (self.folder / name).exists():
                    self._files.write(name)
        self.repair()

    def repair(self) -> None:
        """Drop incomplete rows, as after a kill, and forget attacks that lack a row of theirs."""
        self._files.forget()
        mend_tables(self.folder)
        forget_incomplete(self.folder, self.attacks)

    def last_round(self, point: str) -> int:
        """The last round of a point that has its utility; 0 for none."""
        return max(
            (int(row[0]) for row in self._files.rows("utility.csv") if row[3] == point), default=0
        )

    def rewind(self, point: str, done: int) -> None:
        """Prepare to continue training after round `done` (0: from the start).

        Drops the utility of later rounds, and the rows of attacks that are not in `attacks`, since
        some of their rows may be missing.
        """
        rounds = self._files.rows("utility.csv")
        kept = [row for row in rounds if row[3] != point or (done and int(row[0]) <= done)]
        if kept != rounds:
            self._files.write("utility.csv", kept)
        self.drop_incomplete(point)

    def drop_incomplete(self, point: str, labels: Collection[str] | None = None) -> None:
        """Drop the rows of a point's attacks whose end is not recorded in `attacks`.

        Args:
            point: The name of the point.
            labels: The labels of the adversaries, all by default.
        """
        ended = self.attacks.ended
        rows = self._files.rows("findings.csv")
        whole = [
            row
            for row in rows
            if row[POINT] != point
            or (labels is not None and row[LABEL] not in labels)
            or ((end := ended.get(attack_of(row))) and attempt_of(row) <= end.attempt)
        ]
        if len(whole) < len(rows):
            self._files.write("findings.csv", whole)

    def drop(self, unwanted: Callable[[str, str, str], bool]) -> None:
        """Drop attacks, with their rows, by point, victim and label."""
        self.attacks.drop(lambda one: unwanted(*one.key))
        rows = self._files.rows("findings.csv")
        self._files.write("findings.csv", [row for row in rows if not unwanted(*attack_of(row))])

    def raise_inclusion(self, selected: Mapping[tuple[str, str, str], float]) -> None:
        """Raise `inclusion` of attacks that are selected once more; see `with_inclusion`."""
        rows = self._files.rows("findings.csv") if selected else []
        with contextlib.suppress(ValueError):  # of a table that was changed: `finish` says so
            if (raised := with_inclusion(rows, selected)) != rows:
                self._files.write("findings.csv", raised)

    def rows(self) -> list[dict[str, str]]:
        """The findings so far, as text by column."""
        return [
            dict(zip(COLUMNS, row, strict=True))
            for row in read_table(self.folder / "findings.csv", COLUMNS)[0]
        ]

    def finished(self, point: str) -> dict[tuple[str, str], Ended]:
        """The attacks of a point that ended, by victim and adversary label."""
        return {(one.victim, one.label): one for one in self.attacks.finished(point)}

    def ended(self) -> set[str]:
        """The points that are finished, with all attacks written."""
        there = (self.folder / "points.csv").exists()
        return {row[0] for row in self._files.rows("points.csv")} if there else set()

    def end(self, point: str, seconds: float) -> None:
        """Record that a point is finished, and how long it took; once, if it is resumed after."""
        if point in self.ended():
            return
        if not (self.folder / "points.csv").exists():
            self._files.write("points.csv")
        self._files.append("points.csv", lines([[point, f"{seconds:.3f}"]]))

    def reopen(self) -> None:
        """Count no point as finished, so that all are run again; attacks that ended stay."""
        if (self.folder / "points.csv").exists():
            self._files.write("points.csv")

    def discard(self, folder: str) -> None:
        """Remove a folder of the run, such as the checkpoint of a point that has ended."""
        shutil.rmtree(self.folder / folder, ignore_errors=True)

    def findings(self, findings: Iterable[Finding], ended: Ended | None = None) -> None:
        """Append rows and sync them to disk.

        Args:
            findings: The rows, in general all of one attack.
            ended: The attack whose rows these are all; without it they count as incomplete.
        """
        self._files.append("findings.csv", lines(cells(dataclasses.astuple(f)) for f in findings))
        if ended is not None:
            self.attacks.end(ended)

    def utility(self, round: int, values: Mapping[str, float], point: str) -> None:
        """Append a round's utility, one row for each metric.

        Args:
            round: The round.
            values: Values by metric.
            point: The point of the sweep.
        """
        rows = [cells([round, visible(name), float(v), point]) for name, v in values.items()]
        self._files.append("utility.csv", lines(rows), sync=False)

    def sync_utility(self) -> None:
        """Wait until all rows of utility are on disk."""
        self._files.append("utility.csv")

    def artifact(self, path: str, content: bytes) -> None:
        """Write a file below the run folder, and missing folders; paths outside are refused."""
        if not (self.folder / path).resolve().is_relative_to(self.folder.resolve()):
            raise RunFolderError(f"'{path}' lies outside the run folder {self.folder}")
        self._files.replace(path, content)

    def event(self, kind: str, **fields: Any) -> None:
        """Append a line to `log.jsonl`: seconds since the start, kind, fields."""
        entry = {"seconds": round(time.monotonic() - self._started, 3), "event": kind, **fields}
        self._files.append("log.jsonl", json.dumps(entry, default=str) + "\n", sync=False)

    def provenance(
        self, scenario: Scenario, hashes: Mapping[str, str], *, device: str = "", **more: Any
    ) -> None:
        """Write what the run depends on: versions, seed, hashes of scenario, data and model.

        Args:
            scenario: The scenario.
            hashes: Fingerprints by what they are of, such as "data".
            device: Where it runs; devices of earlier parts of the run are kept.
            **more: Further entries of provenance.json.
        """
        hashes = {"training": provenance.training_digest(self.folder), **hashes}
        content = provenance.of(scenario, hashes, provenance.read(self.folder), device)
        self._files.replace(provenance.FILE, json.dumps({**content, **more}, indent=2).encode())

    def same_training(self) -> None:
        """Raise `RunFolderError` if what training depends on was changed in scenario.toml.

        The true examples are made again from it, so that attacks would be scored against others.
        """
        known = provenance.read(self.folder)
        digest = known.get("hashes", {}).get("training")
        if digest is None or "unknown" in known:  # other projects' scenarios may be completed
            return
        if digest != provenance.training_digest(self.folder):
            raise RunFolderError(
                f"{self.folder / 'scenario.toml'} was changed since this run trained by it. Put "
                "back the file that the run wrote; for another training, choose another --out"
            )

    def same_data(self, fingerprint: str) -> None:
        """Raise `RunFolderError` if the data differ from those that the run began with."""
        hashes = provenance.read(self.folder).get("hashes")
        if not isinstance(hashes, dict) or "data" not in hashes:
            return  # killed before it was written, so before any training
        if hashes["data"] != fingerprint:
            raise RunFolderError(
                f"{self.folder} was run on other data than is found now; resume it with the same "
                "--data, or start anew with another --out"
            )

    def finish(self) -> None:
        """Sort the findings, and write them as Parquet as well; raises `RunFolderError`."""
        rows, path = self.rows(), self.folder / "findings.csv"
        numbers = {int: "Int64", int | None: "Int64", float: "Float64", float | None: "Float64"}
        types = {
            name: numbers.get(kind, "string") for name, kind in get_type_hints(Finding).items()
        }
        try:
            rows.sort(key=order_of)
            self._files.write("findings.csv", [[*row.values()] for row in rows])
            frame = read_csv(path, dtype=types, keep_default_na=False, na_values=_NA)
        except (ValueError, TypeError, OverflowError) as error:  # of an integer: 1.5, infinity
            raise RunFolderError(
                f"{path} was changed and cannot be read: {error}. {PUT_BACK}"
            ) from error
        for name in (name for name, kind in types.items() if kind == "string"):
            frame[name] = frame[name].map(restored).astype("string")
        self._files.replace("findings.parquet", frame.to_parquet(index=False))


_NA = {name: [""] for name in ("value", "baseline", "baseline_prior")}
