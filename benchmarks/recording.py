"""What recording adds to training: seconds of a round with `keep = "all"`, as a ratio to "nothing".

    python benchmarks/recording.py

FedAvg without attacks, in one process: LLG's CNN on digits (20 clients, batch 8) with one local
step, about the least work that a client can have (4 ms), and with five; ResNet-20 (10 clients,
batch 32, 5 steps). Both ways take turns, and which comes first alternates. Each pair of runs gives
a ratio of their median rounds; the median over pairs is printed with its 95 % bootstrap interval.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import bootstrap

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

CASES = {
    "cnn, 1 step": {"model": "cnn", "clients": 20, "batch_size": 8, "local_steps": 1},
    "cnn, 5 steps": {"model": "cnn", "clients": 20, "batch_size": 8, "local_steps": 5},
    "resnet20, 5 steps": {"model": "resnet20", "clients": 10, "batch_size": 32, "local_steps": 5},
}
ROUNDS = {"cnn, 1 step": 12, "cnn, 5 steps": 12, "resnet20, 5 steps": 3}
PAIRS = {"cnn, 1 step": 30, "cnn, 5 steps": 20, "resnet20, 5 steps": 4}


def seconds(case: dict[str, object], keep: str, rounds: int) -> tuple[float, int]:
    """Median seconds of a round after the first, and the bytes that were recorded."""
    training = {key: value for key, value in case.items() if key != "model"}
    scenario = Scenario.parse(
        {
            "task": {"name": "images", "model": case["model"], "size": 32, "test_examples": 16},
            "training": {"rounds": rounds, "algorithm": "fedavg", **training},
            "record": {"keep": keep},
            "engine": {"workers": 1},
        }
    )
    ends: list[float] = []

    def observe(event: str, **fields: object) -> None:
        if event == "round":
            ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        simulate(scenario, Path(folder) / "run", observer=observe)
        size = sum(one.stat().st_size for one in Path(folder).rglob("*.safetensors"))
    return median(later - earlier for earlier, later in pairwise(ends[1:])), size


def main() -> None:
    """Print the ratios."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    for name, case in CASES.items():
        took: dict[str, list[float]] = {"nothing": [], "all": []}
        size = 0
        for pair in range(PAIRS[name]):
            for keep in sorted(took, reverse=bool(pair % 2)):
                one, found = seconds(case, keep, ROUNDS[name])
                took[keep].append(one)
                size = max(size, found)
        ratios = np.divide(took["all"], took["nothing"])
        between = bootstrap((ratios,), np.median, rng=0).confidence_interval
        print(
            f"{name}: {np.median(ratios):.3f} [{between.low:.3f}, {between.high:.3f}], "
            f"{len(ratios)} pairs ({1000 * median(took['nothing']):.1f} ms a round without "
            f"recording, {1000 * median(took['all']):.1f} ms with; {size / 1e6:.1f} MB of "
            f"{ROUNDS[name]} rounds)",
            flush=True,
        )


if __name__ == "__main__":
    main()
