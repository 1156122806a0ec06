"""What watching costs where there is nothing to attack: rounds with and without the curious server.

    python benchmarks/watching.py [--pairs 30] [--clients 20]

FedSGD on the embedded digits at 32 x 32, clients with batches of 16, in one process; no
adversaries, nothing recorded. The strategy alone and the same strategy within HonestButCurious
take turns, and which comes first alternates. Each pair gives a ratio of CPU seconds of a median
round, evaluation included; the median over pairs is printed with its 95 % bootstrap interval. The
random generators are saved once a round under the curious server, and here once a run for the
strategy alone, which would do it at each client. As during the rounds of a run, the garbage
collector passes over what the process held before, in both.
"""

import argparse
import contextlib
import gc
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from scipy.stats import bootstrap

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.engine.process import one_thread
from fedsim.federation.server import HonestButCurious
from fedsim.federation.session import share
from fedsim.federation.strategies import build_strategy
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.seeds import held, isolated

MODELS = {
    "cnn": {"name": "cnn"},
    "wide cnn": {"name": "cnn", "channels": 28},
    "convnet": {"name": "convnet"},
    "mlp": {"name": "mlp", "hidden": [64]},
}
ROUNDS = 8
GOALS = {"cnn": 1.05, "wide cnn": 1.02, "convnet": 1.02}
"""The largest ratio of rounds that is wanted."""


def cost(built: BuiltRun, *, watched: bool) -> float:
    """CPU seconds of a median round after the first."""
    scenario, ends = built.scenario, list[float]()
    strategy = build_strategy(scenario, set())
    grid = InlineGrid(scenario.training.clients)

    def after_round(_round: int, _arrays: ArrayRecord) -> MetricRecord | None:
        ends.append(time.process_time())
        return None

    with (
        tempfile.TemporaryDirectory() as folder,
        isolated(0, "benchmark"),
        contextlib.nullcontext() if watched else held(),
    ):
        if watched:
            ledger = Ledger.create(Path(folder) / "run", scenario)
            campaign = Campaign(built, ledger, InlineExecutor(AttackRunner(built)))
            strategy = HonestButCurious(strategy, campaign=campaign)
        task = built.task
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(task.arrays(task.module())),
            num_rounds=ROUNDS,
            train_config=ConfigRecord({"scenario": scenario.model_dump_json()}),
            evaluate_fn=after_round,
        )
    return median(later - earlier for earlier, later in pairwise(ends[1:]))


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--clients", type=int, default=20)
    chosen = parser.parse_args()
    for name, model in MODELS.items():
        scenario = Scenario.parse(
            {
                "task": {
                    "name": "images", "data": "digits", "size": 32, "model": model,
                    # 100 clients have 16 examples each.
                    "test_fraction": 0.05, "auxiliary_fraction": 0.05,
                },
                "training": {
                    "algorithm": "fedsgd", "rounds": ROUNDS, "clients": chosen.clients,
                    "batch_size": 16,
                },
                "record": {"keep": "nothing"},
                "engine": {"workers": 1, "device": "cpu"},
            }
        )  # fmt: skip
        built = build(scenario)
        share(built)
        size = sum(p.numel() for p in built.task.module().parameters())
        took: dict[bool, list[float]] = {False: [], True: []}
        with one_thread():
            cost(built, watched=True)
            gc.freeze()
            for pair in range(chosen.pairs):
                for watched in sorted(took, reverse=bool(pair % 2)):
                    took[watched].append(cost(built, watched=watched))
        ratios = np.divide(took[True], took[False])
        between = bootstrap((ratios,), np.median, rng=0).confidence_interval
        print(
            f"{name}, {size:,} parameters: {np.median(ratios):.3f} [{between.low:.3f}, "
            f"{between.high:.3f}], {len(ratios)} pairs ({1000 * median(took[False]):.1f} ms a "
            f"round alone, {1000 * median(took[True]):.1f} ms watched); goal: "
            f"{GOALS.get(name, 'none')}",
            flush=True,
        )


if __name__ == "__main__":
    main()
