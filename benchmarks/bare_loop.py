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
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fedsim.engine.process import one_thread
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario
from fedsim.task import Task

SHORT, LONG = 2, 6


@dataclass(frozen=True)
class Cost:
    """CPU seconds a client, one each turn. parameters: of the model."""

    parameters: int
    bare: list[float]
    engine: list[float]

    @property
    def ratios(self) -> list[float]:
        """The engine's cost in bare loops, by turn."""
        return [ours / theirs for ours, theirs in zip(self.engine, self.bare, strict=True)]


@dataclass(frozen=True)
class Federation:
    """What is trained."""

    model: Any
    clients: int
    batch: int

    def scenario(self, rounds: int) -> Scenario:
        """The federation for so many rounds."""
        return Scenario.parse(
            {
                "name": "bare-loop",
                "task": {"name": "images", "data": "digits", "size": 32, "model": self.model},
                "training": {
                    "algorithm": "fedsgd",
                    "rounds": rounds,
                    "clients": self.clients,
                    "batch_size": self.batch,
                    "lr": 0.1,
                },
                "record": {"keep": "nothing"},
                "engine": {"workers": 1, "device": "cpu"},
            }
        )

    def engine(self, rounds: int) -> float:
        """CPU seconds of a run."""
        with tempfile.TemporaryDirectory() as folder:
            started = time.process_time()
            simulate(self.scenario(rounds), Path(folder) / "run")
            return time.process_time() - started

    def bare(self, task: Task, module: torch.nn.Module, rounds: int) -> float:
        """CPU seconds of the loop."""
        parameters = list(module.parameters())
        started = time.process_time()
        for round in range(1, rounds + 1):
            kept = []
            for client in range(self.clients):
                (batch,) = task.batches(client, round, batch_size=self.batch, steps=1)
                loss = task.loss(module, batch.inputs, batch.labels)
                kept.append(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                for at, parameter in enumerate(parameters):
                    parameter -= 0.1 * torch.stack([gradient[at] for gradient in kept]).mean(dim=0)
        return time.process_time() - started

    def cost(self, turns: int) -> Cost:
        """What a client costs in both, in turns."""
        task = self.scenario(1).build_task()
        module = task.module().train()
        bare, engine = [], []
        rounds = LONG - SHORT
        with one_thread():
            started = time.process_time()
            task.evaluate(module)
            evaluation = time.process_time() - started
            self.bare(task, module, 1)
            self.engine(1)
            for _ in range(turns):
                long, short = (self.bare(task, module, rounds) for rounds in (LONG, SHORT))
                bare.append((long - short) / rounds / self.clients)
                long, short = self.engine(LONG), self.engine(SHORT)
                engine.append((long - short - rounds * evaluation) / rounds / self.clients)
        return Cost(sum(p.numel() for p in module.parameters()), bare, engine)


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    found = Federation(given.model, given.clients, given.batch).cost(given.turns)
    print(
        f"{given.model}, {found.parameters:,} parameters, {given.clients} clients, batch "
        f"{given.batch}"
    )
    print(
        f"bare loop {1e3 * median(found.bare):.2f} ms, inline engine "
        f"{1e3 * median(found.engine):.2f} ms"
    )
    low, high = min(found.ratios), max(found.ratios)
    print(f"ratio {median(found.ratios):.2f} ({low:.2f} to {high:.2f}, {given.turns} turns)")


if __name__ == "__main__":
    main()
