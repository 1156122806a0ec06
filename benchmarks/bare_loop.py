"""What a simulated client costs beside its training: the engine and a bare loop take turns.

    python benchmarks/bare_loop.py [--model cnn] [--clients 100] [--batch 16] [--pairs 30]

FedSGD on the embedded digits at 32x32, every client in every round, no adversaries, nothing
recorded. The bare loop draws each client's batch, takes forward and backward pass, keeps the
gradient, and steps by the mean of all. After each round of the inline engine the bare loop makes
one, in the same process, so that what else the machine does disturbs both. CPU milliseconds a
client, without evaluation: the median of the pairs' ratios, with its 95 % bootstrap interval.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
from scipy.stats import bootstrap

from fedsim.engine.process import one_thread
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario
from fedsim.task import Task

WARM = 2
"""Rounds of both before the first pair."""


@dataclass(frozen=True)
class Cost:
    """CPU seconds a client, one each pair of rounds. parameters: of the model."""

    parameters: int
    bare: list[float]
    engine: list[float]

    @property
    def ratios(self) -> list[float]:
        """The engine's cost in bare loops, by pair."""
        return [ours / theirs for ours, theirs in zip(self.engine, self.bare, strict=True)]

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the median ratio."""
        found = bootstrap((self.ratios,), np.median, method="percentile", rng=0)
        return float(found.confidence_interval.low), float(found.confidence_interval.high)


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
                "task": {
                    "name": "images",
                    "data": "digits",
                    "size": 32,
                    "model": self.model,
                    # 100 clients have 16 examples each.
                    "test_fraction": 0.05,
                    "auxiliary_fraction": 0.05,
                },
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

    def bare(self, task: Task, module: torch.nn.Module) -> Iterator[float]:
        """CPU seconds of the loop, round by round."""
        parameters, round = list(module.parameters()), 0
        while True:
            started, round = time.process_time(), round + 1
            kept = []
            for client in range(self.clients):
                (batch,) = task.batches(client, round, batch_size=self.batch, steps=1)
                loss = task.loss(module, batch.inputs, batch.labels)
                kept.append(torch.autograd.grad(loss, parameters))
            with torch.no_grad():
                mean = [torch.zeros_like(parameter) for parameter in parameters]
                for gradient in kept:
                    torch._foreach_add_(mean, gradient, alpha=1 / self.clients)
                torch._foreach_add_(parameters, mean, alpha=-0.1)
            del kept, loss, mean
            yield time.process_time() - started

    def cost(self, pairs: int) -> Cost:
        """What a client costs in both, in turns."""
        scenario = self.scenario(pairs + WARM)
        task = scenario.build_task()
        module = task.module().train()
        others = self.bare(task, module)
        bare, engine = list[float](), list[float]()
        evaluation, began = 0.0, 0.0
        plain = type(task).evaluate

        def evaluate(*given: Any) -> Any:
            nonlocal evaluation
            started = time.process_time()
            found = plain(*given)
            evaluation += time.process_time() - started
            return found

        def observer(event: str, **fields: Any) -> None:
            nonlocal evaluation, began
            if event != "round":
                return
            took = time.process_time() - began - evaluation
            if fields["round"]:
                engine.append(took / self.clients)
                bare.append(next(others) / self.clients)
            evaluation, began = 0.0, time.process_time()

        with (
            one_thread(),
            mock.patch.object(type(task), "evaluate", evaluate),
            tempfile.TemporaryDirectory() as folder,
        ):
            simulate(scenario, Path(folder) / "run", observer=observer)
        return Cost(sum(p.numel() for p in module.parameters()), bare[WARM:], engine[WARM:])


def main() -> None:
    """Print both, and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=30)
    given = parser.parse_args()
    found = Federation(given.model, given.clients, given.batch).cost(given.pairs)
    print(
        f"{given.model}, {found.parameters:,} parameters, {given.clients} clients, batch "
        f"{given.batch}"
    )
    print(
        f"bare loop {1e3 * median(found.bare):.2f} ms, inline engine "
        f"{1e3 * median(found.engine):.2f} ms"
    )
    low, high = found.interval
    print(f"ratio {median(found.ratios):.2f} ({low:.2f} to {high:.2f}, {given.pairs} pairs)")


if __name__ == "__main__":
    main()
