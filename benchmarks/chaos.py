"""Faults at random moments: does a run that is resumed end as if nothing had happened?

    python benchmarks/chaos.py [--trials 1000] [--only inline] [--kinds "disk full" ...]
        [--rows chaos.csv] [--page docs/reliability.md]

Each trial draws, from its number as the seed, an engine, a fault, a scenario of a few rounds on the
embedded digits, what is disturbed (`fedsim run`, `train`, `attack` or `report`) and the moment. The
command is resumed until it ends, and its folder is compared with that of an undisturbed run: every
column of every finding but seconds and attempt (and the error of an attack whose worker was
killed), utility, the last checkpoint, the recording, the artifacts. Nothing may hang, print a
traceback or leave a process, a folder or shared memory behind. Trials that the file of rows holds
are not repeated, so that a run can be stopped and continued. Moments are events of the log plus a
random time, so that a trial that is repeated is disturbed nearly, not exactly, at the same place.
"""

import argparse
import contextlib
import csv
import importlib
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import chaos_faults as faults
import tomli_w
from chaos_compare import differences
from chaos_faults import Ended, Process
from chaos_left import left_behind, shared_memory
from chaos_trials import ENGINES, KINDS, WHERE, Trial

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "docs" / "results" / "rows" / "chaos.csv"
COLUMNS = [
    "trial", "where", "kind", "scenario", "seed", "command", "moment", "fault", "starts", "equal",
    "why", "seconds",
]  # fmt: skip

LOADED = (
    "fedsim.cli.display", "fedsim.engine.simulate", "fedsim.engine.attack", "fedsim.report",
    "fedsim.federation.secure.secaggplus", "flwr.simulation", "plotly.offline", "ray",
    "scipy.optimize", "scipy.stats", "sklearn.datasets", "torchmetrics.functional.image",
)  # fmt: skip


class Chaos:
    """Runs trials below a folder, and keeps what undisturbed runs found.

    Args:
        folder: A folder with a short path, for sockets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._whole: dict[tuple[str, int, str], Path] = {}
        self._cluster: faults.Cluster | None = None
        for name in LOADED:
            importlib.import_module(name)

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.end()

    def whole(self, trial: Trial) -> Path:
        """The folder of an undisturbed run, trained and then attacked or in one go."""
        parts = "train" if trial.command == "train" else "run"
        if trial.command == "attack":
            parts = "attack"
        key = (trial.scenario, trial.seed, parts)
        if key not in self._whole:
            place = self.folder / f"whole{len(self._whole)}"
            place.mkdir()
            on_ray = trial.scenario == "attack dies"
            self._write(trial, place, "ray" if on_ray else "inline")
            (place / "hangs").touch()
            (place / "once").touch()
            first = "train" if parts == "attack" else parts
            self._must(Process([first, "scenario.toml", "--out", "run", "--quiet"], place, {}))
            if parts == "attack":
                shutil.copytree(place / "run", place / "trained")
                self._must(Process(["attack", "run", "--trust", "--quiet"], place, {}))
            self._whole[key] = place
        return self._whole[key]

    @staticmethod
    def _must(process: Process) -> None:
        ended = process.end()
        assert ended.status == 0, ended.said

    def _write(self, trial: Trial, place: Path, where: str) -> None:
        table = faults.scenario(trial.scenario, trial.seed)
        for one in table.get("defenses", []):
            if one["name"] == "chaos_plugins:Client":
                one["marks"] = str(place)
        engine = dict(ENGINES[where])
        if where == "nodes":
            if self._cluster is None:
                self._cluster = faults.Cluster()
            engine["address"] = self._cluster.address
        table["engine"] = engine
        (place / "scenario.toml").write_text(tomli_w.dumps(table))

    def make(self, trial: Trial) -> dict[str, Any]:
        """Make a trial; returns its row."""
        started, memory = time.monotonic(), shared_memory()
        whole = self.whole(trial)
        place = Path(tempfile.mkdtemp(prefix=f"t{trial.number}-", dir=self.folder))
        mark = f"CHAOS_{os.getpid()}_{trial.number}"
        with contextlib.ExitStack() as stack:
            out = place / "disk"
            if trial.kind == "disk full" and self._mounts():
                copied = {"attack": "trained", "report": "run"}.get(trial.command, "")
                begun = 1.3 * faults.size(whole / copied) if copied else 0
                size = int(40_000 + begun + trial.size * faults.size(whole / "run"))
                stack.enter_context(faults.small_disk(out, size))
            else:
                out.mkdir()
            moment = ""
            try:
                running = Running(self, trial, place, whole, mark)
                starts, fault, why = running.go()
                why, moment = why or differences(whole / "run", out / "run", trial), running.moment
            except Exception as error:
                starts, fault, why = 0, "", f"{type(error).__name__}: {error}"
            why = why or left_behind(self.folder, mark, memory)
        if not why:
            shutil.rmtree(place)
        return {
            "trial": trial.number, "where": trial.where, "kind": trial.kind,
            "scenario": trial.scenario, "seed": trial.seed, "command": trial.command,
            "moment": moment, "fault": fault, "starts": starts, "equal": not why,
            "why": " ".join(why.split())[:300], "seconds": f"{time.monotonic() - started:.1f}",
        }  # fmt: skip

    @staticmethod
    def _mounts() -> bool:
        return hasattr(os, "getuid") and os.getuid() == 0 and shutil.which("mount") is not None


class Running:
    """The processes of one trial.

    Args:
        chaos: What the trials share.
        trial: The trial.
        place: Its folder; the run folder is disk/run below it.
        whole: That of the undisturbed run.
        mark: A variable of the environment of all processes.
    """

    def __init__(self, chaos: Chaos, trial: Trial, place: Path, whole: Path, mark: str) -> None:
        self._trial, self._place, self._whole = trial, place, whole
        self.run, self.moment = place / "disk" / "run", ""
        self._environment = {mark: "1", "TMPDIR": str(chaos.folder), "PYTHONPATH": str(HERE)}
        self._chaos = chaos
        chaos._write(trial, place, trial.where)
        if trial.kind == "client hangs" or trial.kind == "client raises once":
            for name in {"hangs", "once"} - {trial.kind.rpartition(" ")[2]}:
                (place / name).touch()
        if trial.where == "nodes":
            assert chaos._cluster is not None
            chaos._cluster.join()
        if trial.command == "attack":
            shutil.copytree(whole / "trained", self.run)
        elif trial.command == "report":
            shutil.copytree(whole / "run", self.run)
            (self.run / "report.html").unlink()
        self._before = self._lines()

    def _lines(self) -> int:
        log = self.run / "log.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def _start(self, *, again: bool = False, limited: bool = False) -> Process:
        trial, engine = self._trial, list[str]()
        if again and trial.elsewhere:
            for key, value in {"name": "auto", "workers": 1, "address": ""}.items():
                engine += ["--set", f"engine.{key}={value or chr(34) * 2}"]
        if trial.command in ("run", "train"):
            there = (self.run / "scenario.toml").exists()
            words = [trial.command, "scenario.toml", "--out", str(self.run), "--quiet", *engine]
            words += ["--resume"] * there
        elif trial.command == "attack":
            words = ["attack", str(self.run), "--trust", "--quiet", *engine]
        else:
            words = ["report", str(self.run)]
        largest = 0
        if limited:
            largest = int(2_000 + trial.size * 60_000)
        return Process(words, self._place, self._environment, largest)

    def go(self) -> tuple[int, str, str]:
        """Start, disturb and resume; returns starts, what was done, and what was wrong."""
        trial, fault, starts = self._trial, "", 1
        limited = trial.kind == "disk full" and not os.path.ismount(self.run.parent)
        process = self._start(limited=limited)
        fault = self._disturb(process)
        ended = process.end()
        if wrong := self._wrong(ended, fault):
            return starts, fault, wrong
        if os.path.ismount(self.run.parent):
            faults.more_room(self.run.parent)
        if trial.kind == "torn file":
            fault = faults.tear(self.run, trial.rng, trial.command) or "nothing to tear"
        if trial.kind == "driver killed twice":
            starts += 1
            second = self._start(again=True)
            time.sleep(0.3 + float(trial.rng.random()) * 3)
            second.send(signal.SIGKILL)
            second.end()
        while ended.status or trial.kind in ("torn file", "driver killed twice"):
            starts += 1
            ended = self._start(again=True).end()
            if wrong := self._wrong(ended, ""):
                return starts, fault, wrong
            if ended.status == 0:
                break
            if starts > 4:
                return starts, fault, f"status {ended.status} again: {ended.said[-200:]}"
        return starts, fault, ""

    @staticmethod
    def _wrong(ended: Ended, fault: str) -> str:
        if ended.hung:
            return f"hung after {fault or 'resume'}"
        killed = ended.status in (-signal.SIGKILL, -signal.SIGTERM)
        if "Traceback" in ended.said and not killed:
            return f"traceback: {ended.said[-250:]}"
        return (
            ""
            if killed or ended.status in (0, 1, 130)
            else (f"status {ended.status}: {ended.said[-200:]}")
        )

    def _wait(self, process: Process) -> None:
        """Wait for the moment of the fault."""
        trial = self._trial
        if trial.kind == "client hangs":
            while process.running() and not (self._place / "hangs").exists():
                time.sleep(0.01)
            time.sleep(trial.after * 0.5)
            self.moment = f"hangs +{trial.after * 0.5:.2f}"
            return
        total = (self._whole / "run" / "log.jsonl").read_bytes().count(b"\n") - self._before
        lines = 0 if trial.command == "report" else int(trial.at * (total + 1))
        pause = trial.after * (0.15 if lines else 1.5)
        self.moment = f"{lines} of {total} +{pause:.2f}"
        while process.running() and self._lines() - self._before < lines:
            time.sleep(0.003)
        time.sleep(pause)

    def _disturb(self, process: Process) -> str:
        kind = self._trial.kind
        if kind in ("disk full", "client raises once", "attack dies"):
            return "none but its own"
        self._wait(process)
        if not process.running():
            return "too late"
        if kind == "driver terminated":
            process.send(signal.SIGTERM)
            return "SIGTERM"
        if kind == "second process":
            second = self._start(again=True).end()
            return f"second: status {second.status}"
        names = {
            "client worker killed": "ClientWorker", "attack worker killed": "AttackWorker",
            "raylet killed": "raylet/raylet", "Ray's head killed": "gcs_server",
            "simulation killed": "fedsim.engine.flower",
            "isolation server killed": "fedsim.isolation.server",
        }  # fmt: skip
        if kind == "node lost":
            assert self._chaos._cluster is not None
            self._chaos._cluster.lose()
            return "node"
        if self._trial.where == "nodes" and "worker" in kind:
            return "killed" if faults.kill_worker(names[kind]) else "not there"
        if kind in names:
            return "killed" if faults.kill_child(process, names[kind]) else "not there"
        process.send(signal.SIGKILL)
        return "SIGKILL"


def done(rows: Path) -> dict[int, dict[str, str]]:
    """The rows so far, by trial."""
    if not rows.exists():
        return {}
    with rows.open(encoding="utf-8", newline="") as file:
        return {int(row["trial"]): row for row in csv.DictReader(file) if row.get("seconds")}


def keep(rows: Path, row: dict[str, Any]) -> None:
    rows.parent.mkdir(parents=True, exist_ok=True)
    new = not rows.exists()
    with rows.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=1000, help="trials 0 to this number")
    parser.add_argument("--first", type=int, default=0, help="the first trial")
    parser.add_argument("--only", nargs="+", choices=[*WHERE], default=[*WHERE])
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--count", type=int, default=10**9, help="make so many trials at most")
    parser.add_argument("--scenario", choices=faults.USUAL, help="of trials that may have any")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin none after them")
    parser.add_argument("--rows", type=Path, default=ROWS)
    asked = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(HERE)}
    began, counts = time.monotonic(), Counter[bool]()
    folder = Path(
        tempfile.mkdtemp(prefix="ch")
    )  # forked commands would remove a TemporaryDirectory
    chaos = Chaos(folder)
    try:
        for number in range(asked.first, asked.trials):
            trial = Trial(number)
            if trial.where not in asked.only or trial.kind not in asked.kinds:
                continue
            if asked.scenario and trial.scenario in faults.USUAL:
                trial.scenario, trial.seed = asked.scenario, 0
            if (
                counts.total() >= asked.count
                or number in done(asked.rows)
                or time.monotonic() - began > asked.seconds
            ):
                continue
            row = chaos.make(trial)
            keep(asked.rows, row)
            counts[row["equal"]] += 1
            print(" ".join(f"{row[key]}" for key in COLUMNS), flush=True)
    finally:
        chaos.close()
        if counts[False] == 0:
            shutil.rmtree(folder)
    print(f"{counts[True]} of {counts.total()} equal")


if __name__ == "__main__":
    main()
