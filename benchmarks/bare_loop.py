"""What a simulated client costs beside its training: the inline engine and a bare loop in turns.

    python benchmarks/bare_loop.py [--model cnn] [--clients 100] [--batch 16] [--turns 5]

FedSGD on the embedded digits at 32x32, every client in every round, no adversaries, nothing
recorded. The bare loop draws each client's batch, takes forward and backward pass, keeps the
gradient, and steps by the mean of all. CPU milliseconds a client, of the difference between a long
run and a short one, so that start and evaluation do not count (the engine evaluates once a round;
one evaluation is taken off for each). The median over turns, with the smallest and largest ratio.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from fedsim.engine.process import one_thread
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
parser.add_argument("--model", default="cnn")
parser.add_argument("--clients", type=int, default=100)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--turns", type=int, default=5)
options = parser.parse_args()
SHORT, LONG = 2, 6


def scenario(rounds: int) -> Scenario:
    """The federation."""
    return Scenario.parse(
        {
            "name": "bare-loop",
            "task": {"name": "images", "data": "digits", "size": 32, "model": options.model},
            "training": {
                "algorithm": "fedsgd",
                "rounds": rounds,
                "clients": options.clients,
                "batch_size": options.batch,
                "lr": 0.1,
            },
            "record": {"keep": "nothing"},
            "engine": {"workers": 1, "device": "cpu"},
        }
    )


def engine(rounds: int) -> float:
    """CPU seconds of a run."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        simulate(scenario(rounds), Path(folder) / "run")
        return time.process_time() - started


def main() -> None:
    """Print both, and their ratio."""
    task = scenario(1).build_task()
    module = task.module().train()
    parameters = list(module.parameters())

    def bare(rounds: int) -> float:
        started = time.process_time()
        for round in range(1, rounds + 1):
            kept = []
            for client in range(options.clients):
                (batch,) = task.batches(client, round, batch_size=options.batch, steps=1)
                loss = task.loss(module, batch.inputs, batch.labels)
                kept.append(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                for at, parameter in enumerate(parameters):
                    parameter -= 0.1 * torch.stack([gradient[at] for gradient in kept]).mean(dim=0)
        return time.process_time() - started

    with one_thread():
        started = time.process_time()
        task.evaluate(module)
        evaluation = time.process_time() - started
        bare(1), engine(1)
        ours, theirs = [], []
        clients = (LONG - SHORT) * options.clients
        for _ in range(options.turns):
            theirs.append((bare(LONG) - bare(SHORT)) / clients)
            ours.append((engine(LONG) - engine(SHORT) - (LONG - SHORT) * evaluation) / clients)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    size = sum(p.numel() for p in parameters)
    print(f"{options.model}, {size:,} parameters, {options.clients} clients, batch {options.batch}")
    print(f"bare loop {1e3 * median(theirs):.2f} ms, inline engine {1e3 * median(ours):.2f} ms")
    print(
        f"ratio {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} turns)"
    )


if __name__ == "__main__":
    main()
