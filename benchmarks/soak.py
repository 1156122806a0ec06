"""A long run whose process must not grow: memory, threads and open files over 2,000 rounds.

    python benchmarks/soak.py [--rounds 2000] [--picture docs/pictures/soak.svg]

FedSGD on the embedded digits, 2 of 4 clients a round, LLG on both updates, one process, everything
recorded that is attacked. The process samples itself after every 20th round. It must not have more
threads or open files at the end than after a tenth of the rounds, and its memory must not have
grown by more than `GROWTH` between the second tenth and the end.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
import psutil
from matplotlib.figure import Figure

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

DOCS = Path(__file__).resolve().parent.parent / "docs"
EVERY = 20
GROWTH = 0.1
"""The share by which memory may grow."""


def scenario(rounds: int) -> Scenario:
    return Scenario.parse(
        {
            "name": "soak",
            "seed": 3,
            "task": {"name": "images", "data": "digits", "model": "cnn", "test_examples": 20},
            "training": {
                "algorithm": "fedsgd", "rounds": rounds, "clients": 4, "clients_per_round": 2,
                "batch_size": 4,
            },
            "adversaries": [{"name": "llg"}],
            "engine": {"workers": 1},
        }
    )  # fmt: skip


def samples(rounds: int) -> list[tuple[int, float, int, int, float]]:
    """Round, MiB in memory, threads, open files and seconds so far, after every 20th round."""
    process, found, began = psutil.Process(), list[Any](), time.monotonic()

    def observe(event: str, **fields: Any) -> None:
        if event == "round" and fields["round"] % EVERY == 0:
            memory = process.memory_info().rss / 2**20
            files, threads = process.num_fds(), process.num_threads()
            found.append((fields["round"], memory, threads, files, time.monotonic() - began))

    with tempfile.TemporaryDirectory() as folder:
        simulate(scenario(rounds), Path(folder) / "run", observer=observe)
    return [row for row in found if row[0]]


def draw(rows: list[tuple[int, float, int, int, float]], path: Path) -> None:
    mpl.rcParams["svg.hashsalt"] = "fedsim"
    figure = Figure(figsize=(8, 2.6), layout="constrained")
    at = [row[0] for row in rows]
    for number, name in enumerate(("memory (MiB)", "threads", "open files"), 1):
        axes = figure.add_subplot(1, 3, number)
        values = [row[number] for row in rows]
        axes.plot(at, values)
        axes.set(xlabel="round", title=name, ylim=(0, 1.1 * max(values)))
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--picture", type=Path, default=DOCS / "pictures" / "soak.svg")
    asked = parser.parse_args()
    rows = samples(asked.rounds)
    draw(rows, asked.picture)
    tenth, last = rows[len(rows) // 10], rows[-1]
    second = rows[len(rows) // 5]
    for name, row in (("a tenth", tenth), ("a fifth", second), ("the end", last)):
        print(f"{name}: round {row[0]}, {row[1]:.0f} MiB, {row[2]} threads, {row[3]} open files")
    print(f"{last[0]} rounds in {last[4]:.0f} s")
    assert last[2] <= tenth[2], "threads grew"
    assert last[3] <= tenth[3], "open files grew"
    assert last[1] <= second[1] * (1 + GROWTH), "memory grew"


if __name__ == "__main__":
    main()
