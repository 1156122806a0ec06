"""Run a scenario: train, intercept every update, attack it, write the report."""

import contextlib
import functools
import hashlib
import os
import re
import time
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim import interrupts
from fedsim.attacking.executor import UNLOGGED, Observer
from fedsim.attacking.identity import forget, plans, settle
from fedsim.attacking.keeping import expected_bytes
from fedsim.diagnosis.diagnose import diagnose_end
from fedsim.engine import Engine, engine_name, knock
from fedsim.engine.packing import packed
from fedsim.engine.preflight import preflight
from fedsim.engine.process import device_name, one_thread, reporting
from fedsim.errors import ClientError, EngineError, RunFolderError, ScenarioError, did_you_mean
from fedsim.federation.strategies import quiet
from fedsim.runs import provenance
from fedsim.runs.files import make_private
from fedsim.runs.ledger import Ledger
from fedsim.runs.lock import alone_in
from fedsim.runs.tables import holds_run, not_writable
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.devices import settled
from fedsim.seeds import isolated, torch_defaults
from fedsim.sinks import Curves
from fedsim.temporary import remove_stale

OF_THE_RUN = re.compile(
    r"sinks\b|engine\.(name|workers|attack_workers|address|(cpus|gpus)_per_(client|attack))$"
)
"""Keys of the engine and the sinks, which all points of a sweep share."""


@torch_defaults()
def simulate(
    scenario: Scenario,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    points: Sequence[str] | None = None,
    observer: Observer = lambda event, **fields: None,
) -> Path:
    """Run a scenario, with all points of its sweep, and write a run folder.

    If the run ends early (Ctrl-C, a failing client), the findings so far are kept and reported. A
    point whose client fails does not end the other points.

    Args:
        scenario: The scenario.
        out: The run folder.
        resume: Whether to continue an interrupted run. Finished attacks are not repeated.
        overwrite: Whether a resumed run drops the rows of another adversary of the same label.
        points: The names of the points to run, all by default.
        observer: Called with each event as it happens.

    Returns:
        The path of the report.

    Raises:
        FedsimError: The scenario cannot be run, or a client failed; see `fedsim.errors`.
    """
    scenario = _settled(scenario, Path(out), resume=resume)
    chosen = _chosen(scenario, points)
    return _run(scenario, chosen, Path(out), resume, observer, overwrite=overwrite)


@torch_defaults()
def train(
    scenario: Scenario,
    out: str | Path,
    *,
    resume: bool = False,
    points: Sequence[str] | None = None,
    observer: Observer = lambda event, **fields: None,
) -> Path:
    """Train a scenario and record what the server intercepts, for `fedsim.attack`.

    Args:
        scenario: The scenario; its adversaries attack when `fedsim.attack` names no others. All
            interceptions are kept unless it states another `record.keep`.
        out: The run folder.
        resume: Whether to continue an interrupted run.
        points: The names of the points to run, all by default.
        observer: Called with each event as it happens.

    Returns:
        The path of the report, which shows the training.

    Raises:
        FedsimError: The scenario cannot be run, or a client failed; see `fedsim.errors`.
    """
    scenario = _settled(scenario, Path(out), resume=resume)
    record = scenario.record
    own = any(plan.victims is not None or plan.rounds is not None for plan in scenario.adversaries)
    if "keep" not in record.model_fields_set or (own and record.keep == "attacked"):
        record = record.model_copy(update={"keep": "all"})
    scenario = scenario.model_copy(update={"record": record})
    chosen = {
        name: point.model_copy(update={"adversaries": [], "record": record})
        for name, point in _chosen(scenario, points).items()
    }
    return _run(scenario, chosen, Path(out), resume, observer)


def _settled(scenario: Scenario, out: Path, *, resume: bool) -> Scenario:
    """The scenario with what "auto" and "random" mean here, or meant when a resumed run began."""
    if not isinstance(scenario, Scenario):
        raise ScenarioError(
            f"scenario: found {scenario!r:.80}; expected a Scenario, such as "
            'Scenario.load("quickstart.toml")'
        )
    engine, began = scenario.engine, dict[str, Any]()
    if resume and (out / "scenario.toml").is_file():
        with contextlib.suppress(OSError, ValueError):  # no run: it begins now
            began = tomllib.loads((out / "scenario.toml").read_text(encoding="utf-8"))
    for key in ("device", "vectorize"):
        if getattr(engine, key) == "auto" and key in began.get("engine", {}):
            engine = engine.model_copy(update={key: began["engine"][key]})
    if scenario.draws_seed:
        scenario = scenario.drawn(began.get("seed"))
    scenario = scenario.model_copy(update={"engine": settled(engine)})
    if engine.vectorize != "auto":
        return scenario
    engine = scenario.engine.model_copy(update={"vectorize": packed(scenario)})
    return scenario.model_copy(update={"engine": engine})


def _chosen(scenario: Scenario, names: Sequence[str] | None) -> dict[str, Scenario]:
    """The points of a scenario that are to be run, by name."""
    found = scenario.points()
    for name in names or ():
        if not scenario.sweep:
            raise ScenarioError(f"no point '{name}': this scenario has no [sweep]")
        if name not in found:
            raise ScenarioError(f"no point '{name}' in the sweep. {did_you_mean(name, found)}")
    return {name: found[name] for name in names or found}


def _run(
    scenario: Scenario,
    chosen: Mapping[str, Scenario],
    out: Path,
    resume: bool,
    observer: Observer,
    *,
    overwrite: bool = False,
) -> Path:
    """Run points of a scenario, and write a run folder; see `simulate`."""
    remove_stale()
    if resume and "unknown" in provenance.read(out):
        raise RunFolderError(
            f"{out} is of another Flower project, which alone can go on with its training. fedsim "
            "attack attacks what is recorded there"
        )
    # A scenario that cannot run is an error before its folder is created.
    if engine_name(scenario) == "ray":
        knock(scenario.engine.address)
    built, cautions, planned, size = None, {}, dict[str, Any](), 0
    for name, point in chosen.items():
        built, cautions[name] = preflight(point, after=built)
        planned[name] = plans(built, name)
        size += expected_bytes(built)
    with contextlib.ExitStack() as stack:
        stack.callback(remove_stale)
        try:
            if not (out / "scenario.toml").is_file() and not holds_run(out, resume=resume):
                make_private(out, shared=scenario.record.shared)
        except OSError as error:
            raise not_writable(out, error) from error
        stack.enter_context(alone_in(out))  # another process may be writing to it
        ledger = open_ledger(scenario, out, resume=resume, after=built)

        def notify(event: str, **fields: Any) -> None:
            if event not in UNLOGGED:
                ledger.event(event, **fields)
            observer(event, **fields)
            curves(event, **fields)

        curves = Curves(
            scenario.sinks, chosen, ledger.folder, lambda text: notify("caution", text=text)
        )
        for each in planned.values():
            forget(ledger, settle(ledger, each, overwrite=overwrite))
        notify("started", scenario=scenario.name, points=[*chosen], engine=engine_name(scenario))
        if shared := [key for key in scenario.sweep if OF_THE_RUN.match(key)]:
            text = f"sweep: {', '.join(shared)} has no effect, as all points run on one engine"
            notify("caution", text=f"{text} with the same sinks. Make a run of each value")
        if size:
            most = scenario.record.max_bytes
            notify("recording", keep=scenario.keeps, bytes=min(size, most), max_bytes=most)

        diagnose = functools.partial(diagnose_end, out, scenario, notify, after=built)
        with reporting(ledger, diagnose):
            try:
                failed = run_points(scenario, chosen.items(), ledger, notify, cautions, after=built)
            except BaseException as error:
                notify("ended", status="interrupted", reason=f"{type(error).__name__}: {error}")
                raise
            notify("ended", status="failed" if failed else "finished", failed=failed)
    if failed:
        name, reason = next(iter(failed.items()))
        several = f"{len(failed)} of {len(chosen)} points failed; the first, {name}: "
        raise ClientError((several if len(chosen) > 1 else "") + reason)
    return ledger.folder / "report.html"


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
) -> dict[str, str]:
    """Run points of a scenario on its engine, one after the other.

    A point whose client fails ends, and the others go on.

    Args:
        scenario: The scenario, for its seed and engine.
        points: The points with their names; an iterator may make them one at a time.
        ledger: The run folder. Points that have ended are recorded in it (`Ledger.ended`).
        notify: Called with each event.
        cautions: Warnings by the name of a point.
        after: The run that this process built before; see `build`.

    Returns:
        Why points failed, by name.
    """
    failed: dict[str, str] = {}
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
            try:
                engine.run(after, ledger, name, notify)
            except ClientError as error:  # of this point alone: an update with NaN, say
                interrupts.check()
                failed[name] = str(error)
                notify("failed", point=name)
                if name:  # without a sweep the error of the run says it
                    notify("caution", point=name, text=f"this point failed: {error}")
                continue
            ledger.end(name, time.perf_counter() - started)
    return failed


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


def _hash(arrays: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
