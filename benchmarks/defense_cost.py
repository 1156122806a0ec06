"""What each defense costs a client: seconds an update, as a ratio to the same update without it.

    python benchmarks/defense_cost.py

FedSGD and FedAvg (10 local steps) of LLG's CNN on scikit-learn's digits at 32x32, batch 16, one
thread. Rounds of all defenses take turns, and the fastest counts, so that a busy machine slows all
alike. Start-up (loading libraries, the first round) is left out.
"""

import argparse
import time

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict

from fedsim.engine.inline import InlineGrid
from fedsim.engine.process import one_thread
from fedsim.federation.strategies import quiet
from fedsim.plugin import names
from fedsim.scenario import Scenario

ROUNDS = 25
WAYS = {"fedsgd": 1, "fedavg": 10}


def federation(algorithm: str, defense: str) -> tuple[Scenario, InlineGrid, ArrayRecord]:
    """One client with one defense, its grid and the arrays it starts from."""
    scenario = Scenario.parse(
        {
            "task": {"name": "images", "size": 32},
            "training": {
                "algorithm": algorithm,
                "clients": 4,
                "batch_size": 16,
                "local_steps": WAYS[algorithm],
            },
            "defenses": [{"name": defense}] if defense else [],
        }
    )
    task = scenario.build_task()
    return scenario, InlineGrid(4), ArrayRecord(task.arrays(task.module()))


def update(scenario: Scenario, grid: InlineGrid, arrays: ArrayRecord, round: int) -> float:
    """Seconds for one client's round."""
    told = {"scenario": scenario.model_dump_json(), "lr": 0.1, "server-round": round}
    content = RecordDict({"arrays": arrays, "config": ConfigRecord(told)})
    started = time.perf_counter()
    (reply,) = grid.send_and_receive(
        [Message(content, next(iter(grid.clients)), MessageType.TRAIN)]
    )
    took = time.perf_counter() - started
    assert not reply.has_error(), reply.error.reason
    return took


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    found: dict[str, dict[str, float]] = {}
    with quiet(), one_thread():
        for algorithm in WAYS:
            runs = {name: federation(algorithm, name) for name in ("", *names("defenses"))}
            times: dict[str, list[float]] = {name: [] for name in runs}
            for round in range(ROUNDS + 1):
                for name, run in runs.items():
                    update(*run, round + 1)  # loads data and model where another one's are there
                    took = update(*run, round + 1)
                    if round:
                        times[name].append(took)
            found[algorithm] = {name: min(values) for name, values in times.items()}
    print("| Defense | FedSGD | FedAvg, 10 local steps |\n| --- | --- | --- |")
    for name in found["fedsgd"]:
        ratios = [f"{found[way][name] / found[way]['']:.2f}" for way in WAYS]
        print(f"| {name or 'none'} | {' | '.join(ratios)} |")
    plain = ", ".join(f"{way} {1000 * found[way]['']:.0f} ms" for way in WAYS)
    print(f"\nOne update without a defense: {plain}; fastest of {ROUNDS} rounds, one core.")


if __name__ == "__main__":
    main()
