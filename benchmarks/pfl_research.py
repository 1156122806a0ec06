"""What a simulated client costs in pfl-research, on fedsim's inline engine and in a bare loop.

    python benchmarks/pfl_research.py [--model cnn] [--clients 40] [--batch 16] [--turns 5]

It needs fedsim and pfl-research in one environment: `pip install pfl`, 0.6 or later. The three take
turns in this process. All train LLG's CNN on the embedded digits at 32x32: every client takes one
step of one batch in every round, nothing is evaluated. CPU milliseconds a client: of pfl-research
by the difference between a long run and a short one, of the others round by round; see
`benchmarks/bare_loop.py`. pfl-research trains FedAvg of one
local step, which is FedSGD. It keeps the sum of a round's updates, where fedsim keeps each.
"""

import argparse
import time
from importlib.metadata import version
from statistics import median

import torch
from bare_loop import Federation
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedsim.engine.process import one_thread
from fedsim.task import Task

SHORT, LONG = 2, 6
"""Rounds of pfl-research's runs."""


class Trained(nn.Module):
    """A model in the form that pfl-research expects."""

    def __init__(self, task: Task, module: nn.Module) -> None:
        super().__init__()
        self.task, self.module = task, module

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The task's loss on a batch."""
        return self.task.loss(self.module.train(), inputs, labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Metrics]:
        """None: nothing is evaluated."""
        return {}


def pfl_seconds(task: Task, module: nn.Module, federation: Federation, rounds: int) -> float:
    """CPU seconds of a run of pfl-research."""
    users = {}
    for client in range(federation.clients):
        (batch,) = task.batches(client, 1, batch_size=federation.batch, steps=1)
        users[client] = PyTorchTensorDataset((batch.inputs, batch.labels), user_id=str(client))
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    trained = Trained(task, module)
    model = PyTorchModel(
        trained,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(trained.parameters(), lr=1.0),
    )
    started = time.process_time()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=federation.clients,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=1,
            local_learning_rate=0.1,
            local_batch_size=federation.batch,
        ),
        NNEvalHyperParams(local_batch_size=federation.batch),
        send_metrics_to_platform=False,
    )
    return time.process_time() - started


def main() -> None:
    """Print the cost of a client in all three, and ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    federation = Federation(given.model, given.clients, given.batch)
    task = federation.scenario(1).build_task()
    module = task.module().train()
    rounds = LONG - SHORT
    ours, theirs = [], []
    with one_thread():
        pfl_seconds(task, module, federation, 1)
        for _ in range(given.turns):
            ours.append(federation.cost(rounds))
            long, short = (pfl_seconds(task, module, federation, n) for n in (LONG, SHORT))
            theirs.append((long - short) / rounds / given.clients)
    took = {
        "bare loop": [median(one.bare) for one in ours],
        "inline": [median(one.engine) for one in ours],
        f"pfl {version('pfl')}": theirs,
    }
    for name, each in took.items():
        ratios = [one / bare for one, bare in zip(each, took["bare loop"], strict=True)]
        print(
            f"{name:<10} {1e3 * median(each):6.2f} CPU ms a client, {1 / median(each):6.0f} "
            f"clients a CPU second, {median(ratios):.2f} bare loops ({min(ratios):.2f} to "
            f"{max(ratios):.2f}, {given.turns} turns)"
        )


if __name__ == "__main__":
    main()
