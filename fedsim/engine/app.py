"""The ServerApp of `flwr run`, which runs one scenario on the SuperNodes that are connected.

The run config (`[tool.flwr.app.config]`) holds `scenario` (name or path), `overrides` (as for
--set, separated by spaces), `out`, `data`, and `supernodes`, the number of them to wait for. The
number of clients is the number of SuperNodes.
"""

import functools
import shlex
import time
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.executor import InlineExecutor
from fedsim.diagnosis.diagnose import diagnose_end
from fedsim.engine.preflight import preflight
from fedsim.engine.process import one_thread, reporting
from fedsim.errors import EngineError, ScenarioError
from fedsim.federation import federate
from fedsim.federation.other_grids import OrderedGrid
from fedsim.report import summary
from fedsim.runs.ledger import Ledger
from fedsim.runs.lock import alone_in
from fedsim.scenario import Scenario
from fedsim.seeds import isolated
from fedsim.sinks import Curves

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the scenario that the run config names."""
    given = {key: str(value) for key, value in context.run_config.items()}
    name = given.get("scenario") or "first-rounds"
    overrides = shlex.split(given.get("overrides", ""))
    nodes = _settled(grid, _number(given.get("supernodes", "0")))
    load = functools.partial(Scenario.load, name, data=given.get("data"))
    training = load(overrides).training
    if nodes != training.clients:
        print(  # noqa: T201
            f"{nodes} SuperNode{'s are' if nodes > 1 else ' is'} connected, so training.clients = "
            f"{nodes} instead of {training.clients}. For more, state how many to wait for "
            "(supernodes=N in --run-config), or num-supernodes in a simulation",
            flush=True,
        )
    overrides.append(f"training.clients={nodes}")
    overrides.append(f"training.clients_per_round={min(training.per_round, nodes)}")
    scenario = load(overrides)
    if scenario.sweep:
        raise ScenarioError("flwr run runs one scenario; run a sweep with `fedsim run`")
    built, cautions = preflight(scenario, nodes_decide=True)
    ledger = Ledger.create(
        Path(given.get("out") or f"runs/{scenario.name}-{context.run_id}"), scenario
    )
    ledger.provenance(scenario, {"data": built.task.fingerprint()}, engine="flwr run")

    def notify(event: str, **fields: Any) -> None:
        if event == "round":
            numbers = [f"{k} {v:.3f}" for k, v in fields.items() if isinstance(v, float)]
            print(f"round {fields['round']}/{fields['of']}", *numbers, flush=True)  # noqa: T201
        if event == "caution":
            print(f"warning: {fields['text']}", flush=True)  # noqa: T201
        if event != "findings":
            ledger.event(event, **fields)
        curves(event, **fields)

    curves = Curves(
        scenario.sinks, {"": scenario}, ledger.folder, lambda text: notify("caution", text=text)
    )
    diagnose = functools.partial(diagnose_end, ledger.folder, scenario, notify, after=built)
    for caution in cautions:
        notify("caution", text=caution)
    with (
        alone_in(ledger.folder),
        reporting(ledger, diagnose),
        one_thread(),
        isolated(scenario.seed, "simulation"),
    ):
        executor = InlineExecutor(AttackRunner(built))
        notify("point", point="", rounds=scenario.training.rounds)
        try:
            federate.run(built, ledger, OrderedGrid(grid, nodes), executor, "", notify)
        except BaseException as error:
            notify("ended", status="interrupted", reason=f"{type(error).__name__}: {error}")
            raise
        notify("ended", status="finished", failed={})
    for row in summary(ledger.folder):
        print(f"{row['label']}: {row['sentence']}", flush=True)  # noqa: T201
    print(f"report: {ledger.folder.resolve() / 'report.html'}", flush=True)  # noqa: T201


def _number(stated: str) -> int:
    try:
        number = int(stated)
    except ValueError:
        number = -1
    if number < 0:
        raise ScenarioError(f"supernodes: found {stated!r:.40}; expected a number of SuperNodes")
    return number


def _settled(grid: Grid, wanted: int, *, quiet: float = 3.0, patience: float = 120.0) -> int:
    """Wait until as many nodes are connected as wanted, or no new one connects.

    Args:
        grid: Reaches the nodes.
        wanted: The number of nodes; 0: as many as there are.
        quiet: Seconds without a new node, if no number is wanted.
        patience: Seconds to wait for the first and for each further one.

    Returns:
        The number of nodes.

    Raises:
        EngineError: No node, or fewer than wanted, connected.
    """
    seen, since = 0, time.monotonic()
    while seen < max(1, wanted) or (not wanted and time.monotonic() - since < quiet):
        now = len(list(grid.get_node_ids()))
        if now != seen:
            seen, since = now, time.monotonic()
            if wanted:
                print(f"{seen} of {wanted} SuperNodes are connected", flush=True)  # noqa: T201
        if time.monotonic() - since > patience and seen < max(1, wanted):
            raise EngineError(
                f"{seen or 'no'} SuperNodes connected, and no other within {patience:g} s"
                + f"; expected {wanted} (supernodes in --run-config)" * bool(wanted)
            )
        time.sleep(0.2)
    return seen
