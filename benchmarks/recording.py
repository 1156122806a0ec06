"""What recording adds to training: seconds of a round with `keep = "all"`, as a ratio to "nothing".

    python benchmarks/recording.py

FedAvg without attacks: LLG's CNN on digits (20 clients, batch 8, 1 step) and ResNet-20 (10 clients,
batch 32, 5 steps), in one process. Both ways take turns, and the fastest of five runs counts, so
that a busy machine slows both alike.
"""

import tempfile
import time
from pathlib import Path

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

RUNS = 5
ROUNDS = 6
CASES = {
    "cnn, 1 step": {"model": "cnn", "clients": 20, "batch_size": 8, "local_steps": 1},
    "resnet20, 5 steps": {"model": "resnet20", "clients": 10, "batch_size": 32, "local_steps": 5},
}


def seconds(case: dict[str, object], keep: str) -> tuple[float, int]:
    """Seconds of a round after the first, and the bytes that were recorded."""
    training = {key: value for key, value in case.items() if key != "model"}
    scenario = Scenario.parse(
        {
            "task": {"name": "images", "model": case["model"], "size": 32, "test_examples": 16},
            "training": {"rounds": ROUNDS, "algorithm": "fedavg", **training},
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
    return (ends[-1] - ends[1]) / (len(ends) - 2), size


def main() -> None:
    """Print the ratios."""
    for name, case in CASES.items():
        best = {"nothing": float("inf"), "all": float("inf")}
        size = 0
        for _ in range(RUNS):
            for keep in best:
                took, found = seconds(case, keep)
                best[keep], size = min(best[keep], took), max(size, found)
        ratio = best["all"] / best["nothing"]
        print(
            f"{name}: {ratio:.3f} ({1000 * best['nothing']:.1f} ms a round without recording, "
            f"{1000 * best['all']:.1f} ms with; {size / 1e6:.1f} MB of {ROUNDS} rounds)"
        )


if __name__ == "__main__":
    main()
