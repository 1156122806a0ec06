"""Traps in which an audit would be wrong in silence: each is read right, named, or not counted."""

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG
from fedsim import HonestButCurious, reveal, watch
from fedsim.engine.inline import InlineGrid
from fedsim.report import summary


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


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))


def data():
    rng = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(32, 1, 8, 8, generator=rng), torch.arange(32) % 4)


def audited(tmp_path, train, **settings):
    """The rows of an audit in which one client trains as told, and its run folder."""
    app = ClientApp()

    @app.train(mods=[watch()])
    def run(message, context):
        net = Net().train()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(net, DataLoader(data(), batch_size=8))
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 8})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    torch.manual_seed(5)
    HonestButCurious(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        adversaries=[LLG()],
        model=Net,
        out=tmp_path / "run",
        **settings,
    ).start(grid=InlineGrid(1, app), initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=1)
    return rows(tmp_path / "run")


def steps(net, loader, optimizer, loss=nn.functional.cross_entropy, before=lambda x: x, clip=None):
    for x, y in loader:
        optimizer.zero_grad()
        loss(net(before(x)), y).backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()


def momentum(net, loader):
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))


def adam(net, loader):
    steps(net, reveal(loader), torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1))


def adamw(net, loader):
    steps(net, reveal(loader), torch.optim.AdamW(net.parameters(), lr=0.01))


def augmented(net, loader):
    noisy = lambda x: x + 0.1 * torch.randn_like(x)  # noqa: E731
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1), before=noisy)


def normalised(net, loader):
    steps(
        net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1), before=lambda x: 2 * x - 1
    )


def scheduled(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()


def accumulated(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(reveal(loader)):
        nn.functional.cross_entropy(net(x), y).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    "train", [momentum, adam, adamw, augmented, normalised, scheduled, accumulated]
)
def test_what_was_seen_explains_the_update(train, tmp_path):
    found = audited(tmp_path, train)
    assert {(row["status"], row["truth"], row["checked"]) for row in found} == {
        ("ok", "revealed", "fits")
    }


def smoothed(net, loader):
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1), loss)


def clipped(net, loader):
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1), clip=0.5)


def evaluating(net, loader):
    net.eval()
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1))


def summed(net, loader):
    loss = nn.CrossEntropyLoss(reduction="sum")
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.01), loss)


def mixed(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()


def others_labels(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), (y + 1) % 4).backward()
        optimizer.step()


def hidden_batches(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps(net, reveal(loader), optimizer)
    steps(net, loader, optimizer)  # a second epoch that nobody revealed


@pytest.mark.parametrize(
    ("train", "which"),
    [
        (smoothed, "misfit: label smoothing of 0.1"),
        (clipped, "misfit: gradients clipped to norm 0.5"),
        (summed, "misfit: a loss summed over examples"),
        (mixed, "misfit: autocast in bfloat16"),
        (others_labels, "misfit: none of "),
        (hidden_batches, "misfit: none of "),
    ],
)
def test_a_misfit_is_named_and_enters_no_average(train, which, tmp_path):
    with pytest.warns(UserWarning, match="does not explain its update"):
        found = audited(tmp_path, train)
    assert {row["status"] for row in found} == {"unverified"}
    assert all(row["checked"].startswith(which) for row in found), found[0]["checked"]
    assert {row["value"] for row in found} != {""}  # kept, for whoever looks
    for row in summary(tmp_path / "run"):
        assert (row["n"], row["mean"], row["unverified"]) == (0, None, 1)
        assert "1 unverified" in row["sentence"]
    assert "unverified" in (tmp_path / "run/report.html").read_text()


def by_hand(net, loader):
    x, y = next(iter(reveal(loader)))
    nn.functional.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad


def two_optimizers(net, loader):
    x, y = next(iter(reveal(loader)))
    nn.functional.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.first.parameters(), lr=0.1).step()
    torch.optim.Adam(net.out.parameters(), lr=0.1).step()


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (by_hand, "not checked: no optimizer took a step: weights were changed by hand"),
        (two_optimizers, "not checked: the optimizer (several) is none of torch.optim"),
    ],
)
def test_what_cannot_be_checked_says_why(train, why, tmp_path):
    found = audited(tmp_path, train)
    assert {(row["status"], row["checked"]) for row in found} == {("ok", why)}


def test_the_models_mode_is_the_clients(tmp_path):
    found = audited(tmp_path, evaluating)
    assert {row["checked"] for row in found} == {"fits"}
