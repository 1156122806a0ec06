"""A Flower app without fedsim, in the manner of Flower's tutorial: what `engines.py` compares with.

    python benchmarks/flower_app.py [--clients 100] [--population 0] [--rounds 4] [--batch 16]
        [--workers 2]

The federation of `engines.py` on Flower's simulation: LLG's CNN on the embedded digits at 32x32,
every client takes one SGD step of one batch, Flower's FedAvg averages the weights, the server
evaluates after each round. The client builds its model and loads the weights for each message, as
the tutorial's does; data stay in memory. Only the network and the pixels are fedsim's. The last
line printed is JSON: when the first round had ended (seconds since 1970), and clients a second
after it. Flower sends telemetry unless FLWR_TELEMETRY_ENABLED is 0.
"""

import argparse
import json
import time
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedsim.tasks.images.data import load
from fedsim.tasks.models.cnn import CNN


@cache
def digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and test data, loaded once in each process."""
    images = load("digits", None, size=32, test_fraction=0.1, seed=0)

    def made(places: Tensor) -> TensorDataset:
        return TensorDataset(images.inputs(places), images.labels[places])

    return made(images.train), made(images.test)


@cache
def loader(client: int, clients: int, batch: int) -> DataLoader[tuple[Tensor, ...]]:
    """The batches of one client, which holds every `clients`-th example; shuffled."""
    train, _ = digits()
    own = TensorDataset(*train[client::clients])
    return DataLoader(own, batch_size=batch, shuffle=True)


def network() -> nn.Module:
    """LLG's CNN for the digits."""
    return CNN().build((1, 32, 32), 10)


client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Take one step from the weights received, and send the new ones."""
    torch.set_num_threads(1)
    config = message.content["config"]
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    client, clients = (context.node_config[key] for key in ("partition-id", "num-partitions"))
    inputs, labels = next(iter(loader(int(client), int(clients), int(config["batch"]))))
    optimizer.zero_grad()
    loss = cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"loss": float(loss.detach()), "num-examples": len(labels)}),
        }
    )
    return Message(content=content, reply_to=message)


def simulated(
    clients: int, population: int, rounds: int, batch: int, workers: int
) -> tuple[float, float]:
    """When the first round had ended, and clients a second after it."""
    server_app, ends, population = ServerApp(), list[float](), population or clients

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        model = network()
        model.load_state_dict(arrays.to_torch_state_dict())
        _, test = digits()
        inputs, labels = test[:]
        with torch.no_grad():
            right = model.eval()(inputs).argmax(dim=1) == labels
        ends.append(time.time())
        return MetricRecord({"accuracy": float(right.float().mean())})

    @server_app.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=clients / population,
            min_available_nodes=population,
            fraction_evaluate=0.0,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(network().state_dict()),
            train_config=ConfigRecord({"batch": batch}),
            num_rounds=rounds,
            evaluate_fn=evaluate,
        )

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=population,
        backend_config={
            "init_args": {"num_cpus": workers},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    if len(ends) != rounds + 1:
        raise SystemExit(f"{len(ends) - 1} of {rounds} rounds were made")
    _, first, *_, last = ends  # the first is of the weights that nobody has trained
    return first, (rounds - 1) * clients / (last - first)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, default in (
        ("clients", 100),
        ("population", 0),
        ("rounds", 4),
        ("batch", 16),
        ("workers", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = vars(parser.parse_args())
    if given["rounds"] < 2:
        parser.error("--rounds must be 2 or more: the first one is left out")
    first, rate = simulated(**given)
    print(json.dumps({"first": first, "rate": rate}))


if __name__ == "__main__":
    import flower_app  # so that Ray's workers import the client by its module's name

    flower_app.main()
