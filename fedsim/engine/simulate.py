"""The main job: run a federation, intercept every update, attack it, see what leaks."""

import contextlib
import hashlib
import platform
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedsim.attacking.campaign import Observer
from fedsim.engine import engine_name, open_engine
from fedsim.engine.preflight import preflight
from fedsim.errors import FedsimError, ScenarioError, did_you_mean
from fedsim.federation.strategies import quiet
from fedsim.report import write_report
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import isolated

__all__ = ["one_thread", "open_ledger", "play", "run_points", "simulate"]


def simulate(
    scenario: Scenario,
    out: str | Path,
    *,
    resume: bool = False,
    points: Sequence[str] | None = None,
    observer: Observer = lambda event, **fields: None,
) -> Path:
    """Run a scenario, all points of its sweep, into the run folder `out`; returns the report.

    resume: continue an interrupted run; finished attacks are not repeated. points: only these
    points of the sweep, by name. observer: told what happens, as it happens.

    Whatever ends the run (Ctrl-C, a failing client), what was found is kept and reported. Raises
    what is in `fedsim.errors`.
    """
    chosen = scenario.points()
    if points:
        for name in points:
            if not scenario.sweep:
                raise ScenarioError(f"no point '{name}': this scenario has no [sweep]")
            if name not in chosen:
                raise ScenarioError(f"no point '{name}' in the sweep. {did_you_mean(name, chosen)}")
        chosen = {name: chosen[name] for name in points}
    # Whatever cannot be run is an error before there is any folder.
    built, cautions = None, {}
    for name, point in chosen.items():
        built, cautions[name] = preflight(point, after=built)
    ledger = open_ledger(scenario, Path(out), resume=resume, after=built)

    def notify(event: str, **fields: Any) -> None:
        if event not in ("findings", "progress"):
            ledger.event(event, **fields)
        observer(event, **fields)

    notify("started", scenario=scenario.name, points=list(chosen), engine=engine_name(scenario))
    try:
        run_points(scenario, chosen.items(), ledger, notify, cautions, after=built)
    except BaseException as error:
        notify("ended", status="interrupted", reason=f"{type(error).__name__}: {error}")
        # What ended the run matters more than a report that has nothing to tell yet.
        with contextlib.suppress(FedsimError):
            ledger.finish()
            write_report(ledger.folder)
        raise
    notify("ended", status="finished")
    ledger.finish()
    return write_report(ledger.folder)


def open_ledger(
    scenario: Scenario,
    out: Path,
    *,
    resume: bool,
    growing: Collection[str] = (),
    after: BuiltRun | None = None,
) -> Ledger:
    """A run folder with its provenance; see `Ledger.create`. Raises `RunFolderError`."""
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
        points: The points by name, which may be made as they are asked for.
        ledger: The run folder. Points that ended are recorded in it (`Ledger.ended`).
        notify: Called with what happens.
        cautions: By point, what to warn of.
        after: The run that was built before, whose data are kept if they are the same.
    """
    with (
        quiet(),
        one_thread(),
        isolated(scenario.seed, "simulation"),
        open_engine(scenario) as engine,
    ):
        for name, point in points:
            notify("point", point=name, rounds=point.training.rounds)
            for caution in (cautions or {}).get(name, ()):
                notify("caution", point=name, text=caution)
            started = time.perf_counter()
            after = build(point, after=after)
            engine.run(after, ledger, name, notify)
            ledger.end(name, time.perf_counter() - started)


play = run_points
"""The name that `run_points` had."""


def device_name(scenario: Scenario) -> str:
    """What attacks run on: the GPU's name, or the processor's."""
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
    """Keep torch to one thread: sums then add up in the same order on every engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
