"""The main job: run a federation, intercept every update, attack it, see what leaks."""

import contextlib
import hashlib
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid
from torch import Tensor

from fedsim.attack import Bench
from fedsim.campaign import InlineExecutor, Observer
from fedsim.engine import engine_name, open_engine
from fedsim.errors import EngineError, ScenarioError, did_you_mean
from fedsim.federation import play
from fedsim.grid import OrderedGrid
from fedsim.ledger import Ledger
from fedsim.report import summary, write_report
from fedsim.scenario import Scenario
from fedsim.seeds import isolated
from fedsim.strategies import build_strategy, quiet

__all__ = ["serve_app", "simulate"]


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
            if name not in chosen:
                raise ScenarioError(f"no point '{name}' in the sweep. {did_you_mean(name, chosen)}")
        chosen = {name: chosen[name] for name in points}
    task = scenario.build_task()
    # Missing data, and a model that cannot take it, are errors before there is any folder.
    task.num_examples(0)
    task.head  # noqa: B018
    fingerprint, weights = task.fingerprint(), task.arrays(task.module())
    with quiet():
        build_strategy(scenario)
    ledger = Ledger.create(Path(out), scenario, resume=resume)
    ledger.provenance(
        scenario,
        {"data": fingerprint, "model": _hash(weights)},
        engine=engine_name(scenario),
        parameters=sum(value.numel() for value in weights.values()),
    )

    def tell(event: str, **fields: Any) -> None:
        if event != "findings":
            ledger.event(event, **fields)
        observer(event, **fields)

    tell("started", scenario=scenario.name, points=list(chosen), engine=engine_name(scenario))
    try:
        with (
            quiet(),
            _threads(1),
            isolated(scenario.seed, "simulation"),
            open_engine(scenario) as engine,
        ):
            for name, point in chosen.items():
                tell("point", point=name, rounds=point.training.rounds)
                engine.play(point, ledger, name, tell)
    except BaseException as error:
        tell("ended", status="interrupted", reason=f"{type(error).__name__}: {error}")
        raise
    else:
        tell("ended", status="finished")
    finally:
        ledger.finish()
        report = write_report(ledger.folder)
    return report


def _hash(arrays: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    """Bound torch's threads: sums then add up in the same order on every engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def serve_app(grid: Grid, context: Context) -> None:
    """The ServerApp of `flwr run`: one scenario, on whichever nodes Flower has.

    Run config: `scenario` (name or path), `overrides` (as for --set, separated by spaces), `out`,
    `data`. The number of clients is the number of SuperNodes.
    """
    given = {key: str(value) for key, value in context.run_config.items()}
    name = given.get("scenario") or "quickstart"
    overrides = shlex.split(given.get("overrides", ""))
    data = given.get("data") or os.environ.get("FEDSIM_DATA")
    nodes = _settled(grid)
    asked = Scenario.load(name, overrides, data=data).training
    if nodes != asked.clients:
        print(  # noqa: T201
            f"{nodes} SuperNodes are connected, so training.clients = {nodes} instead of "
            f"{asked.clients}; set num-supernodes to change that",
            flush=True,
        )
    scenario = Scenario.load(
        name,
        [
            *overrides,
            f"training.clients={nodes}",
            f"training.clients_per_round={min(asked.per_round, nodes)}",
        ],
        data=data,
    )
    if scenario.sweep:
        raise ScenarioError("flwr run plays one scenario; run a sweep with `fedsim run`")
    task = scenario.build_task()
    ledger = Ledger.create(
        Path(given.get("out") or f"runs/{scenario.name}-{context.run_id}"), scenario
    )
    ledger.provenance(scenario, {"data": task.fingerprint()}, engine="flwr run")

    def tell(event: str, **fields: Any) -> None:
        if event == "round":
            numbers = [f"{k} {v:.3f}" for k, v in fields.items() if isinstance(v, float)]
            print(f"round {fields['round']}/{fields['of']}", *numbers, flush=True)  # noqa: T201
        if event != "findings":
            ledger.event(event, **fields)

    try:
        with _threads(1), isolated(scenario.seed, "simulation"):
            executor = InlineExecutor(Bench(scenario, task=task))
            play(scenario, ledger, OrderedGrid(grid, nodes), executor, "", tell, task=task)
    finally:
        ledger.finish()
        report = write_report(ledger.folder)
        for row in summary(ledger.folder):
            print(f"{row['label']}: {row['sentence']}", flush=True)  # noqa: T201
        print(f"report: {report.resolve()}", flush=True)  # noqa: T201


def _settled(grid: Grid, *, quiet: float = 3.0, patience: float = 120.0) -> int:
    """How many nodes there are, once no new one has come for a while."""
    seen, since, start = 0, time.monotonic(), time.monotonic()
    while seen == 0 or time.monotonic() - since < quiet:
        now = len(list(grid.get_node_ids()))
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - start > patience:
            raise EngineError(f"no client connected within {patience:g} s")
        time.sleep(0.2)
    return seen
