"""The rounds of one run on a Grid, with attacks beside the training; every engine calls this."""

import contextlib
import gc
from collections.abc import Iterator

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim import interrupts
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import Executor, Observer
from fedsim.federation.checkpoint import Checkpoint, Checkpoints, Later, capture, restore
from fedsim.federation.grid import LocalGrid
from fedsim.federation.secure.grid import SecureGrid
from fedsim.federation.server import HonestButCurious
from fedsim.federation.strategies import build_strategy
from fedsim.federation.utility import utility
from fedsim.federation.wrappers import Following, Scheduled, Wrapper
from fedsim.runs.ledger import Ledger, place
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.devices import device_here
from fedsim.seeds import WIDE, derive, reseed
from fedsim.training.budget import Budget
from fedsim.victim import load_arrays

__all__ = ["place", "play", "run"]


def run(
    built: BuiltRun, ledger: Ledger, grid: Grid, executor: Executor, point: str, observer: Observer
) -> None:
    """Train one scenario on a Grid, and attack every update.

    Args:
        built: The scenario's task and plugins.
        ledger: The run folder.
        grid: Reaches the clients.
        executor: Runs the attacks.
        point: The name of the sweep's point, "" without a sweep.
        observer: Called with each event.
    """
    scenario, task = built.scenario, built.task
    settings, seed = scenario.training, scenario.seed
    module = task.module()
    initial = {name: value.clone() for name, value in task.arrays(module).items()}
    buffers = set(initial) - task.trained(module)
    module.to(device_here(scenario.engine, "client"))
    folder = place("checkpoint", point)
    local = grid if isinstance(grid, LocalGrid) else None  # other Grids do not keep contexts
    if settings.secure_aggregation:
        most = settings.batch_size * max(map(built.steps, range(settings.clients)))
        grid = SecureGrid(grid, settings.secure_aggregation, seed=seed, most=most)
    found = Checkpoint.read(ledger, folder)
    done = found if found and found.complete and found.round and local else None
    campaign = Campaign(built, ledger, executor, point=point, observer=observer)
    if done and not (
        ledger.last_round(point) >= done.round and campaign.recording.is_whole(done.round)
    ):
        done = None  # a part was lost, as after a power failure, and is made again
    if done and not campaign.replay(done.round):
        done = None  # attacks need interceptions of earlier rounds, which are made again
    ledger.rewind(point, done.round if done else 0)
    if found:
        observer("resumed", round=done.round if done else 0, of=settings.rounds)
    strategy: Strategy = Scheduled(build_strategy(scenario, buffers), settings)
    if scenario.threat.follow:
        strategy = Following(strategy, scenario.threat.follow)
    curious = HonestButCurious(strategy, campaign=campaign, on_failure=settings.on_failure)
    budget = Budget(built)
    config = ConfigRecord({"scenario": scenario.model_dump_json(), "lr": settings.lr})
    checkpoints = Checkpoints(ledger, folder, campaign.settled)

    def after_round(round: int, arrays: ArrayRecord) -> MetricRecord:
        """Record utility, and seed the generators that Flower's strategies draw from.

        A round then depends on (seed, round) alone, and on nothing that ran before it.
        """
        interrupts.check()  # before a client that failed because of one counts as failed
        state = dict(arrays.to_torch_state_dict())
        load_arrays(module, state)
        found = utility(task, module) if settings.evaluates(round) else {}
        found.pop("num_examples", None)
        values = {**found, **curious.metrics, **budget.spent(round, curious.taken_part)}
        ledger.utility(round, values, point)
        if round:  # a run needs no checkpoint to begin with round 1
            states = None if local is None else local.states()
            checkpoints.add(capture(round, state, strategy, states, curious.taken_part))
        observer("round", round=round, of=settings.rounds, point=point, **values)
        reseed(derive(seed, "round", round), wide=seed >= WIDE)
        return MetricRecord(dict(found))

    server: Wrapper = curious
    if done is not None and local is not None:
        restore(done, strategy, local.context)
        curious.taken_part.update(done.taken_part)
        kept = done.arrays
        initial = {name: kept[name] for name in initial}  # FedAvgM knows arrays by their order
        server = Later(curious, done.round)
        reseed(derive(seed, "round", done.round), wide=seed >= WIDE)
    try:
        with _frozen():
            server.start(
                grid=grid,
                initial_arrays=ArrayRecord(initial),
                num_rounds=settings.rounds,
                train_config=config,
                evaluate_config=ConfigRecord(dict(config)),
                evaluate_fn=after_round,
            )
        campaign.close()
        checkpoints.write()
    except BaseException:
        campaign.cancel()
        for last in (campaign.collect, checkpoints.write):
            with contextlib.suppress(Exception):
                last()
        raise


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Let the garbage collector pass over what the process held before the rounds.

    Flower's records refer to themselves, so that each round begins several collections, and those
    of all generations walk through the objects of PyTorch and Ray.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


play = run
"""The name that `run` had."""
