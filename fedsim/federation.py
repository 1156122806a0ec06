"""One federation, trained on a Grid with a campaign beside it; every engine ends up here."""

import contextlib
import hashlib

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors.torch import save

from fedsim.campaign import Campaign, Executor, Observer
from fedsim.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.seeds import derive, reseed
from fedsim.server import HonestButCurious
from fedsim.strategies import Following, build_strategy
from fedsim.tasks import Task
from fedsim.victim import load_arrays

__all__ = ["place", "play"]


def play(
    scenario: Scenario,
    ledger: Ledger,
    grid: Grid,
    executor: Executor,
    point: str,
    observer: Observer,
    *,
    task: Task,
) -> None:
    """Train one point of a run on a Grid, the campaign beside it."""
    settings, seed = scenario.training, scenario.seed
    module = task.module()
    initial = {name: value.clone() for name, value in task.arrays(module).items()}
    buffers = set(initial) - task.trained(module)
    campaign = Campaign(
        scenario, ledger, executor, point=point, folder=place("tape", scenario, point),
        observer=observer,
    )
    strategy: Strategy = build_strategy(scenario, buffers)
    if scenario.threat.follow:
        strategy = Following(strategy, scenario.threat.follow)
    curious = HonestButCurious(strategy, campaign=campaign, on_failure=settings.on_failure)
    config = ConfigRecord({"scenario": scenario.model_dump_json(), "lr": settings.lr})
    checkpoint = place("checkpoint", scenario, point) + "/global.safetensors"

    def after_round(round: int, arrays: ArrayRecord) -> MetricRecord:
        """Utility on the test split; then seed what Flower's strategies draw from, so that a
        round depends on (seed, round) and on nothing that ran before it."""
        state = {name: value.contiguous() for name, value in arrays.to_torch_state_dict().items()}
        load_arrays(module, state)
        utility = task.evaluate(module)
        utility.pop("num_examples")
        values = {**utility, **curious.metrics}
        ledger.utility(round, values, point)
        ledger.artifact(checkpoint, save(state, {"round": str(round)}))
        observer("round", round=round, of=settings.rounds, point=point, **values)
        reseed(derive(seed, "round", round))
        return MetricRecord(dict(utility))

    try:
        curious.start(
            grid=grid,
            initial_arrays=ArrayRecord(initial),
            num_rounds=settings.rounds,
            train_config=config,
            evaluate_config=ConfigRecord(dict(config)),
            evaluate_fn=after_round,
        )
        campaign.collect(wait=True)
    except BaseException:
        campaign.cancel()
        with contextlib.suppress(Exception):
            campaign.collect()
        raise


def place(folder: str, scenario: Scenario, point: str) -> str:
    """Where a point of a sweep keeps its files: `folder`, or a folder of its own within."""
    if not point:
        return folder
    return f"{folder}/{hashlib.sha256(point.encode()).hexdigest()[:12]}"
