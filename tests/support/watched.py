"""Watched clients that train as told, and what the audit says of each."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG
from fedsim import HonestButCurious, reveal, watch
from fedsim.engine.inline import InlineGrid


class Net(nn.Module):
    """A network with BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5)
        )
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        return self.out(self.first(x))


def data():
    rng = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(32, 1, 8, 8, generator=rng), torch.arange(32) % 4)


def audited(tmp_path, *trains, model=Net, sent=None, **settings):
    """The rows of an audit in which each client trains as told, with what the server has sent."""
    app = ClientApp()

    @app.train(mods=[watch()])
    def run(message, context):
        net = model().train()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        torch.manual_seed(7)  # of the dropout masks
        trains[int(context.node_config["partition-id"])](net, DataLoader(data(), batch_size=8))
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 8})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    torch.manual_seed(5)
    HonestButCurious(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        adversaries=[LLG()],
        model=model,
        out=tmp_path / "run",
        **settings,
    ).start(
        grid=InlineGrid(len(trains), app),
        initial_arrays=ArrayRecord(model().state_dict()),
        num_rounds=1,
        train_config=ConfigRecord(sent or {}),
    )
    return rows(tmp_path / "run")


def one_step(folder, make, loss, /, *adversaries, lr=0.1, **settings):
    """The rows of an audit of two clients that take one step of SGD.

    `loss(net, client)` reveals the client's batch, and returns its loss and number of examples.
    """
    app = ClientApp()

    @app.train(mods=[watch()])
    def train(message, context):
        net = make()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=lr)
        value, count = loss(net, int(context.node_config["partition-id"]))
        value.backward()
        optimizer.step()
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": count})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    torch.manual_seed(3)
    HonestButCurious(
        FedAvg(fraction_evaluate=0.0), model=make, adversaries=adversaries, out=folder, **settings
    ).start(
        grid=InlineGrid(2, app),
        initial_arrays=ArrayRecord(make().state_dict()),
        num_rounds=1,
    )
    return rows(folder)


def values(found, label, metric):
    """The values of an adversary's metric, a row each."""
    return [float(r["value"]) for r in found if (r["label"], r["metric"]) == (label, metric)]


def checks(found, *trains):
    """What `checked` says, with the status, by the name of the client's training function."""
    return {
        trains[int(row["client"])].__name__: (row["status"], row["truth"], row["checked"])
        for row in found
    }


def steps(net, loader, optimizer, loss=nn.functional.cross_entropy, before=lambda x: x, clip=None):
    for x, y in loader:
        optimizer.zero_grad()
        loss(net(before(x)), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


def momentum(net, loader):
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
