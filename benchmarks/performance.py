"""How cost grows with clients, model, batch and workers: the tables and plots of a page.

    python benchmarks/performance.py [--only models batches ...] [--page docs/performance.md]

Each part measures, rewrites its table in the page and its plot in docs/pictures, and can be made
alone. FedSGD on the embedded digits at 32x32, one thread a process, in a temporary run folder.

networks    CPU time of a client inline and in a bare loop (benchmarks/bare_loop.py), by model
models      the same of perceptrons, by parameters
batches     the same, by batch size
rounds      the same, by clients in a round
start       what a process computes until its first round begins, beside PyTorch's import
population  start, time of a round and memory of a run in a process of its own, by clients in all
workers     clients a second on each engine, by clients in a round
attacks     a run whose attacks wait for each other and for training, or have workers of their own
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bare_loop import Federation
from engines import KINDS, Speed, measure
from matplotlib.axes import Axes
from parts import DOCS, Part, cell, machine, plot, write

from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

PAIRS = 30
COUNTED = 1000
"""Clients of which rates are measured, at least."""
STARTS = 9
"""Processes of each kind whose start is measured."""
FEW = 10**6
"""Parameters from which there are six pairs of rounds only."""

NETWORKS: list[tuple[int, Any]] = [
    (15_226, "cnn"),
    (57_914, {"name": "cnn", "channels": 28}),
    (61_706, "lenet"),
    (97_034, "convnet"),
]
"""Convolutional networks, and their parameters for inputs of 32 x 32."""

NEAR = 1.2
"""A size below the one before times this has no label of its own on a plot's axis."""

SPREAD = 50
"""Ratio of the largest cost to the smallest from which their axis is logarithmic."""

WIDE = ([9], [48], [237], [640, 500], [1600, 2000], [4000, 5000])
"""Hidden units of perceptrons."""


def _costs(by: str, sizes: list[tuple[int, Federation]], goals: Sequence[str] = ()) -> Part:
    """A client's cost inline and in a bare loop, by what is varied, beside the goal if any."""
    rows = []
    for size, federation in sizes:
        found = federation.cost(6 if size > FEW else PAIRS)
        low, high = found.interval
        rows.append(
            [
                size,
                1e3 * median(found.bare),
                1e3 * median(found.engine),
                median(found.ratios),
                f"{low:.2f} to {high:.2f}",
                *goals[len(rows) : len(rows) + 1],
            ]
        )
        print("  ", rows[-1], flush=True)

    def draw(axes: Axes) -> None:
        for column, label in ((1, "bare loop"), (2, "inline engine")):
            heights = [row[column] for row in rows]
            axes.plot([row[0] for row in rows], heights, marker="o", label=label)
        axes.set(xscale="log", xlabel=by, ylabel="CPU ms a client")
        sizes = [row[0] for row in rows]
        near = [after < NEAR * before for before, after in pairwise([0, *sizes])]
        names = ["" if hidden else cell(size) for size, hidden in zip(sizes, near, strict=True)]
        axes.set_xticks(sizes, names)
        axes.xaxis.minorticks_off()
        if max(row[2] for row in rows) > SPREAD * min(row[2] for row in rows):
            axes.set(yscale="log")
        else:
            axes.set(ylim=(0, None))

    heads = [by, "bare loop, ms", "inline, ms", "ratio", "95 % interval"]
    return Part([*heads, "goal"] if goals else heads, rows, draw)


def networks() -> Part:
    """By parameters of convolutional networks."""
    sizes = [(size, Federation(name, 100, 16)) for size, name in NETWORKS]
    sizes.append((269_434, Federation("resnet20", 20, 16)))
    return _costs("parameters", sizes, ["≤ 1.3"] + ["≤ 1.15"] * (len(sizes) - 1))


def models() -> Part:
    """By parameters of perceptrons."""
    sizes = []
    for hidden in WIDE:
        units = [32 * 32, *hidden, 10]
        size = sum((before + 1) * after for before, after in pairwise(units))
        sizes.append((size, Federation({"name": "mlp", "hidden": hidden}, 20, 16)))
    return _costs("parameters", sizes)


def batches() -> Part:
    """By batch size."""
    return _costs("batch size", [(size, Federation("cnn", 20, size)) for size in (1, 4, 16, 64)])


def rounds() -> Part:
    """By clients in a round."""
    many = (10, 30, 100, 300)
    return _costs("clients a round", [(each, Federation("cnn", each, 16)) for each in many])


ALONE = """
import json, sys, time
started = time.process_time()
from pathlib import Path
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario
imported = time.process_time()
simulate(Scenario.parse(json.loads(sys.argv[1])), Path(sys.argv[2]))
# Linux's own figure: getrusage would count the process that started this one.
peak = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
print(json.dumps([imported - started, time.process_time() - imported, peak]))
"""


FIRST = """
import os, sys, time
from pathlib import Path
from rich.console import Console
from fedsim.cli.working import loading
with loading(Console(), quiet=True):
    from fedsim.engine.simulate import simulate
    from fedsim.scenario import Scenario
def observer(event, **fields):
    if event == "round":  # before the first round, after the first evaluation
        print(time.process_time(), flush=True)
        os._exit(0)
table = {
    "task": {"name": "images", "data": "digits", "size": 32, "model": "cnn"},
    "training": {"algorithm": "fedsgd", "rounds": 1, "clients": 10, "batch_size": 16},
    "adversaries": [{"name": "llg"}],
    "engine": {"workers": 1, "device": "cpu"},
}
simulate(Scenario.parse(table), Path(sys.argv[1]), observer=observer)
"""


def start() -> Part:
    """What a process computes until its first round begins, beside PyTorch's import."""
    codes = {
        "`import torch`": "import time, torch; print(time.process_time())",
        "inline, until the first round": FIRST,
    }
    took: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(STARTS):
        for name, code in codes.items():
            with tempfile.TemporaryDirectory() as folder:
                said = subprocess.run(
                    [sys.executable, "-c", code, f"{folder}/run"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
            took[name].append(float(said.stdout.split()[-1]))
    beside = [ours - alone for alone, ours in zip(*took.values(), strict=True)]
    rows: list[list[Any]] = [[name, median(each), ""] for name, each in took.items()]
    rows.append(["the difference", median(beside), "≤ .8 s"])
    print("  ", rows, flush=True)

    def draw(axes: Axes) -> None:
        axes.boxplot(
            list(took.values()), vert=False, tick_labels=[name.strip("`") for name in took]
        )
        axes.set(xlabel="CPU seconds", xlim=(0, None))

    return Part(["process", "CPU s", "goal"], rows, draw)


def population() -> Part:
    """By clients in all, of which ten take part in a round and one is attacked."""
    rows = []
    for clients in (10, 100, 1000, 10_000, 100_000, 1_000_000):
        took: dict[int, list[float]] = {}
        for rounds in (1, 11):
            table = {
                "task": {
                    "name": "images",
                    "data": "digits",
                    "size": 32,
                    "model": "cnn",
                    "partition": {"kind": "resample"},
                },
                "training": {
                    "algorithm": "fedsgd",
                    "rounds": rounds,
                    "clients": clients,
                    "clients_per_round": 10,
                    "batch_size": 16,
                },
                "adversaries": [{"name": "llg", "victims": 1}],
                "engine": {"workers": 1, "device": "cpu"},
            }
            with tempfile.TemporaryDirectory() as folder:
                said = subprocess.run(
                    [sys.executable, "-c", ALONE, json.dumps(table), f"{folder}/run"],
                    capture_output=True,
                    text=True,
                    check=True,
                )
            took[rounds] = json.loads(said.stdout.splitlines()[-1])
        each = (took[11][1] - took[1][1]) / 10
        goal = {100_000: "start in 2 s", 1_000_000: "start in 10 s"}.get(clients, "")
        rows.append([clients, took[1][1] - each, 1e3 * each, took[11][2], goal])
        print("  ", rows[-1], flush=True)

    def draw(axes: Axes) -> None:
        axes.plot([r[0] for r in rows], [r[2] for r in rows], marker="o", label="a round, CPU ms")
        axes.plot([r[0] for r in rows], [r[3] for r in rows], marker="o", label="memory, MB")
        axes.set(xscale="log", xlabel="clients in all", ylim=(0, None))

    heads = ["clients", "start and end, CPU s", "round of 10, CPU ms", "memory, MB", "goal"]
    return Part(heads, rows, draw)


def _run(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The log of a run."""
    with tempfile.TemporaryDirectory() as folder:
        simulate(Scenario.parse(table), Path(folder) / "run")
        return [json.loads(line) for line in (Path(folder) / "run/log.jsonl").open()]


GOALS = {"100": "≥ 3, 5 and 1.35", "100 of 1,000": "≥ 3.5 and 6"}
"""What the three ratios should be, by clients in a round."""


def workers() -> Part:
    """By engine and clients in a round."""
    many = {"10": (10, 0), "100": (100, 0), "300": (300, 0), "100 of 1,000": (100, 1000)}
    found: dict[str, list[Speed]] = {name: [] for name in KINDS}
    for clients, population in many.values():
        rounds = 1 + max(3, -(-COUNTED // clients))
        for name in KINDS:
            speed = measure(
                name,
                clients=clients,
                population=population,
                rounds=rounds,
                batch=16,
                workers=2,
            )
            found[name].append(speed)
            print("  ", clients, population, name, speed, flush=True)
    rows: list[list[Any]] = []
    for at, label in enumerate(many):
        inline, ray, flower, app = (found[name][at].rate for name in KINDS)
        rates = [inline, ray, flower, app, inline / app, ray / app, ray / inline]
        rows.append([label, *rates, GOALS.get(label, "")])
    inline, ray, flower, app = (found[name][0].start for name in KINDS)
    rows.append(["start-up, s", inline, ray, flower, app, "", "", "", ""])

    def draw(axes: Axes) -> None:
        for name in KINDS:
            axes.plot(list(many), [one.rate for one in found[name]], marker="o", label=name)
        axes.set(xlabel="clients a round", ylabel="clients a second", ylim=(0, None))

    heads = ["clients a round", *KINDS, "inline : app", "ray : app", "ray : inline", "goals"]
    return Part(heads, rows, draw)


def attacks() -> Part:
    """By where attacks run."""
    found: dict[str, tuple[float, float]] = {}
    for name, engine in (
        ("after each round", {"workers": 1}),
        ("on two workers", {"name": "ray", "workers": 1}),
    ):
        started = time.perf_counter()
        log = _run(
            {
                "task": {"name": "images", "data": "digits", "size": 32, "model": "lenet-sigmoid"},
                "training": {
                    "algorithm": "fedsgd", "rounds": 10, "clients": 10, "batch_size": 1,
                },
                "threat": {"grants": "white-box", "victims": 2},
                "adversaries": [{"name": "dlg", "iterations": 30, "restarts": 0}],
                "engine": {**engine, "attack_workers": 2, "device": "cpu"},
            }
        )  # fmt: skip
        ends = [entry["seconds"] for entry in log if entry["event"] == "round"]
        found[name] = (ends[-1], time.perf_counter() - started)
        print("  ", name, found[name], flush=True)
    rows: list[list[Any]] = [[name, *took] for name, took in found.items()]

    def draw(axes: Axes) -> None:
        axes.barh(list(found), [took[0] for took in found.values()])
        axes.set(xlabel="seconds until the last round is trained")

    return Part(["attacks run", "last round trained after, s", "whole run, s"], rows, draw)


PARTS: dict[str, Callable[[], Part]] = {
    "networks": networks,
    "models": models,
    "batches": batches,
    "rounds": rounds,
    "start": start,
    "population": population,
    "workers": workers,
    "attacks": attacks,
}


def main() -> None:
    """Measure the chosen parts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--page", type=Path, default=DOCS / "performance.md")
    given = parser.parse_args()
    print(machine(), flush=True)
    for name in given.only:
        print(name, flush=True)
        part = PARTS[name]()
        write(name, part, given.page)
        plot(name, part)


if __name__ == "__main__":
    main()
