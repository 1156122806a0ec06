"""The ServerApp of `flwr run`, which runs one scenario on the SuperNodes that are connected.

The run config (`[tool.flwr.app.config]`) holds `scenario` (name or path), `overrides` (as for
--set, separated by spaces), `out` and `data`. The number of clients is the number of SuperNodes.
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

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the scenario that the run config names."""
    given = {key: str(value) for key, value in context.run_config.items()}
    name = given.get("scenario") or "first-rounds"
    overrides = shlex.split(given.get("overrides", ""))
    nodes = _settled(grid)
    load = functools.partial(Scenario.load, name, data=given.get("data"))
    training = load(overrides).training
    if nodes != training.clients:
        print(  # noqa: T201
            f"{nodes} SuperNode{'s are' if nodes > 1 else ' is'} connected, so training.clients = "
            f"{nodes} instead of {training.clients}. For more, start more SuperNodes first (of a "
            "simulation, set num-supernodes)",
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
        federate.run(built, ledger, OrderedGrid(grid, nodes), executor, "", notify)
    for row in summary(ledger.folder):
        print(f"{row['label']}: {row['sentence']}", flush=True)  # noqa: T201
    print(f"report: {ledger.folder.resolve() / 'report.html'}", flush=True)  # noqa: T201


def _settled(grid: Grid, *, quiet: float = 3.0, patience: float = 120.0) -> int:
    """Wait until no new node connects.

    Args:
        grid: Reaches the nodes.
        quiet: Seconds without a new node.
        patience: Seconds to wait for the first one.

    Returns:
        The number of nodes.

    Raises:
        EngineError: No node connected.
    """
    seen, since, start = 0, time.monotonic(), time.monotonic()
    while seen == 0 or time.monotonic() - since < quiet:
        now = len(list(grid.get_node_ids()))
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - start > patience:
            raise EngineError(f"no client connected within {patience:g} s")
        time.sleep(0.2)
    return seen
