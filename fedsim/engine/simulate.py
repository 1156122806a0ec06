"""Run a scenario: train, intercept every update, attack it, write the report."""

import contextlib
import hashlib
import os
import platform
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.attacking.executor import Observer
from fedsim.engine import Engine, engine_name
from fedsim.engine.preflight import preflight
from fedsim.errors import EngineError, FedsimError, ScenarioError, did_you_mean
from fedsim.federation.strategies import quiet
from fedsim.report import write_report
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import isolated


def simulate(
    scenario: Scenario,
    out: str | Path,
    *,
    resume: bool = False,
    points: Sequence[str] | None = None,
    observer: Observer = lambda event, **fields: None,
) -> Path:
    """Run a scenario, with all points of its sweep, and write a run folder.

    If the run ends early (Ctrl-C, a failing client), the findings so far are kept and reported.

    Args:
        scenario: The scenario.
        out: The run folder.
        resume: Whether to continue an interrupted run. Finished attacks are not repeated.
        points: The names of the points to run, all by default.
        observer: Called with each event as it happens.

    Returns:
        The path of the report.

    Raises:
        FedsimError: The scenario cannot be run, or a client failed; see `fedsim.errors`.
    """
    chosen = scenario.points()
    if points:
        for name in points:
            if not scenario.sweep:
                raise ScenarioError(f"no point '{name}': this scenario has no [sweep]")
            if name not in chosen:
                raise ScenarioError(f"no point '{name}' in the sweep. {did_you_mean(name, chosen)}")
        chosen = {name: chosen[name] for name in points}
    # A scenario that cannot run is an error before its folder is created.
    built, cautions = None, {}
    for name, point in chosen.items():
        built, cautions[name] = preflight(point, after=built)
    ledger = open_ledger(scenario, Path(out), resume=resume, after=built)

    def notify(event: str, **fields: Any) -> None:
        if event not in ("findings", "progress"):
            ledger.event(event, **fields)
        observer(event, **fields)

    notify("started", scenario=scenario.name, points=list(chosen), engine=engine_name(scenario))
    with reporting(ledger):
        try:
            run_points(scenario, chosen.items(), ledger, notify, cautions, after=built)
        except BaseException as error:
            notify("ended", status="interrupted", reason=f"{type(error).__name__}: {error}")
            raise
        notify("ended", status="finished")
    return ledger.folder / "report.html"


@contextlib.contextmanager
def reporting(ledger: Ledger) -> Iterator[None]:
    """Finish a run folder and write its report when the code within ends, for whatever reason."""
    try:
        yield
    except BaseException:
        # The error that ended the run matters more than that of a report without rows.
        with contextlib.suppress(FedsimError):
            ledger.finish()
            write_report(ledger.folder)
        raise
    ledger.finish()
    write_report(ledger.folder)


def open_ledger(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool,
    growing: Collection[str] = (),
    after: BuiltRun | None = None,
) -> Ledger:
    """Open a run folder and write its provenance.

    Args:
        scenario: The scenario.
        out: The folder.
        resume: Whether to continue the run that the folder holds.
        growing: Keys of the scenario that may differ from those of the folder.
        after: The run that this process built before; see `build`.

    Raises:
        RunFolderError: The folder cannot be used; see `Ledger.create`.
    """
    task = build(scenario, after=after).task
    fingerprint, weights = task.fingerprint(), task.arrays(task.module())
    ledger = Ledger.create(out, scenario, resume=resume, growing=growing)
    ledger.same_data(fingerprint)
    ledger.provenance(
        scenario,
        {"data": fingerprint, "model": _hash(weights)},
        engine=engine_name(scenario),
        parameters=sum(value.numel() for value in weights.values()),
        device=device_name(scenario),
    )
    return ledger


def run_points(
    scenario: Scenario,
    points: Iterable[tuple[str, Scenario]],
    ledger: Ledger,
    notify: Observer,
    cautions: Mapping[str, Sequence[str]] | None = None,
    *,
    after: BuiltRun | None = None,
) -> None:
    """Run points of a scenario on its engine, one after the other.

    Args:
        scenario: The scenario, for its seed and engine.
        points: The points with their names; an iterator may make them one at a time.
        ledger: The run folder. Points that have ended are recorded in it (`Ledger.ended`).
        notify: Called with each event.
        cautions: Warnings by the name of a point.
        after: The run that this process built before; see `build`.
    """
    with (
        quiet(),
        one_thread(),
        isolated(scenario.seed, "simulation"),
        contextlib.closing(start_engine(scenario)) as engine,
    ):
        for name, point in points:
            notify("point", point=name, rounds=point.training.rounds)
            for caution in (cautions or {}).get(name, ()):
                notify("caution", point=name, text=caution)
            started = time.perf_counter()
            after = build(point, after=after)
            engine.run(after, ledger, name, notify)
            ledger.end(name, time.perf_counter() - started)


def start_engine(scenario: Scenario) -> Engine:
    """Start the engine of a scenario, which is to be closed in the end.

    Args:
        scenario: The scenario, for its `engine` table and its number of clients.

    Raises:
        EngineError: The engine cannot start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    name = engine_name(scenario)
    if name == "inline":
        from fedsim.engine.inline import InlineEngine

        return InlineEngine()
    if name == "flower":
        from fedsim.engine.flower import FlowerEngine

        return FlowerEngine()
    try:
        from fedsim.engine.ray.clients import RayEngine
    except ImportError as error:
        raise EngineError(f"Ray is not installed ({error}); set engine.workers = 1") from error
    return RayEngine(scenario)


play = run_points
"""The name that `run_points` had."""


def device_name(scenario: Scenario) -> str:
    """The name of the GPU or processor that attacks run on."""
    if scenario.engine.gpus_per_attack and torch.cuda.is_available():
        return str(torch.cuda.get_device_name())
    with contextlib.suppress(OSError):  # not on every system
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _hash(arrays: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread, so that sums are rounded alike on every engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
