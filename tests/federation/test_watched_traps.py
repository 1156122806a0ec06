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
from fedsim import HonestButCurious, load, reveal, watch
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


def audited(tmp_path, *trains, model=Net, **settings):
    """The rows of an audit in which each client trains as told."""
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
    )
    return rows(tmp_path / "run")


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


def second_epoch(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps(net, reveal(loader), optimizer)
    steps(net, loader, optimizer)  # the same batches, which nobody revealed


def accumulated(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(reveal(loader)):
        nn.functional.cross_entropy(net(x), y).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def warmed_up(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 4)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()  # the first one at a rate of 0
        schedule.step()


def one_cycle(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()


def frozen(net, loader):
    net.first.requires_grad_(False)
    steps(net, reveal(loader), torch.optim.SGD(net.out.parameters(), lr=0.1))


def in_a_column(net, loader):
    columns = DataLoader([(x, y[None]) for x, y in loader.dataset], batch_size=8)
    rows_of = lambda logits, y: nn.functional.cross_entropy(logits, y[:, 0])  # noqa: E731
    steps(net, reveal(columns), torch.optim.SGD(net.parameters(), lr=0.1), rows_of)


def by_keyword(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x=2 * x - 1), y).backward()
        optimizer.step()


def loaded_ahead(net, loader):
    batches, optimizer = iter(reveal(loader)), torch.optim.SGD(net.parameters(), lr=0.1)
    ahead = next(batches)
    for following in [*batches, None]:
        (x, y), ahead = ahead, following
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(2 * x - 1), y).backward()
        optimizer.step()


def listed(net, loader):
    batches = list(reveal(loader))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        steps(net, batches, optimizer)


def closure(net, loader):
    net.eval()  # dropout would differ between the calls
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)
    for x, y in reveal(loader):

        def loss(x=x, y=y):
            optimizer.zero_grad()
            value = nn.functional.cross_entropy(net(x), y)
            value.backward()
            return value

        optimizer.step(loss)


EXPLAINED = [
    momentum, adam, adamw, augmented, normalised, scheduled, accumulated, second_epoch, warmed_up,
    one_cycle, frozen, in_a_column, by_keyword, loaded_ahead, listed, closure,
]  # fmt: skip


def test_what_was_seen_explains_the_update(tmp_path):
    found = checks(audited(tmp_path, *EXPLAINED), *EXPLAINED)
    assert found == {one.__name__: ("ok", "revealed", "fits") for one in EXPLAINED}


class Tied(nn.Module):
    """A network of two layers with the same weights."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.b.weight = self.a.weight
        self.out = nn.Linear(64, 4)

    def forward(self, x):
        return self.out(torch.sigmoid(self.b(torch.sigmoid(self.a(x.flatten(1))))))


def test_tied_weights_are_trained_once(tmp_path):
    found = checks(audited(tmp_path, momentum, model=Tied), momentum)
    assert found == {"momentum": ("ok", "revealed", "fits")}


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


MISFITS = {
    smoothed: "label smoothing of 0.1",
    clipped: "gradients clipped to norm 0.5",
    summed: "a loss summed over examples",
    mixed: "autocast in bfloat16",
    others_labels: "none of 11 ways of training fits",
}


def test_a_misfit_is_named_and_enters_no_average(tmp_path):
    with pytest.warns(UserWarning, match="does not explain its update"):
        found = audited(tmp_path, *MISFITS)
    assert checks(found, *MISFITS) == {
        one.__name__: ("unverified", "revealed", f"misfit: {which}")
        for one, which in MISFITS.items()
    }
    assert {row["value"] for row in found} != {""}  # kept, for whoever looks
    for row in summary(tmp_path / "run"):
        assert (row["n"], row["mean"], row["unverified"]) == (0, None, len(MISFITS))
        assert f"{len(MISFITS)} unverified" in row["sentence"]
    assert "unverified" in (tmp_path / "run/report.html").read_text()


def by_hand(net, loader):
    x, y = next(iter(reveal(loader)))
    nn.functional.cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad


def hidden_batches(net, loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps(net, reveal(loader), optimizer)
    steps(net, DataLoader(data(), batch_size=5), optimizer)  # which nobody revealed


def two_optimizers(net, loader):
    x, y = next(iter(reveal(loader)))
    nn.functional.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.first.parameters(), lr=0.1).step()
    torch.optim.Adam(net.out.parameters(), lr=0.1).step()


def tiny_rate(net, loader):
    wrong = lambda logits, y: nn.functional.cross_entropy(logits, (y + 1) % 4)  # noqa: E731
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=1e-6), wrong)


def two_groups(net, loader):
    groups = [{"params": net.first.parameters(), "lr": 0.01}, {"params": net.out.parameters()}]
    steps(net, reveal(loader), torch.optim.SGD(groups, lr=1.0))


class Around(torch.optim.Optimizer):
    """An optimizer around another one, which halves what it does."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        held = [one for group in self.param_groups for one in group["params"]]
        before = [one.detach().clone() for one in held]
        self.inner.step()
        with torch.no_grad():
            for one, was in zip(held, before, strict=True):
                one.lerp_(was, 0.5)


def wrapped(net, loader):
    steps(net, reveal(loader), Around(torch.optim.SGD(net.parameters(), lr=0.1)))


def several_parts(net, loader):
    numbered = DataLoader([(x, y, 3) for x, y in loader.dataset], batch_size=8)
    pairs = ((x, y) for x, y, _ in reveal(numbered))
    with pytest.warns(UserWarning, match=r"reveal\(loader, labels=1\)"):
        steps(net, pairs, torch.optim.SGD(net.parameters(), lr=0.1))


def no_classes(net, loader):
    numbered = DataLoader([(x, y + 7) for x, y in loader.dataset], batch_size=8)
    less = lambda logits, y: nn.functional.cross_entropy(logits, y - 7)  # noqa: E731
    steps(net, reveal(numbered), torch.optim.SGD(net.parameters(), lr=0.1), less)


UNCHECKED = {
    by_hand: ("revealed", "no optimizer took a step: weights were changed by hand"),
    hidden_batches: ("partial", "inputs or labels are missing"),
    two_optimizers: ("revealed", "the optimizer (several) is none of torch.optim"),
    tiny_rate: ("revealed", "the change of most weights is within rounding"),
    two_groups: ("revealed", "the optimizer has several groups of parameters"),
    wrapped: ("revealed", "the optimizer is wrapped by another one (Around)"),
    several_parts: ("partial", "inputs or labels are missing"),
    no_classes: ("partial", "its labels are not one class for each example"),
}


def test_what_cannot_be_checked_says_why(tmp_path):
    found = checks(audited(tmp_path, *UNCHECKED, record={"keep": "all"}), *UNCHECKED)
    assert found == {
        one.__name__: ("ok", truth, f"not checked: {why}")
        for one, (truth, why) in UNCHECKED.items()
    }
    groups = [*UNCHECKED].index(two_groups)
    updates = {one.clients[0]: one.update for one in load(tmp_path / "run").recording()}
    assert updates[groups].lr is None  # no one rate is that of all layers
    by_hands = [row for row in rows(tmp_path / "run") if row["client"] == "0"]
    assert {row["local_steps"] for row in by_hands} == {""}  # which nobody saw or stated


def test_a_check_that_raises_says_so_and_is_made_once(tmp_path):
    calls = []

    def loss(module, inputs, target, **more):
        calls.append(1)
        raise ValueError("no such loss")

    found = audited(tmp_path, momentum, loss=loss)
    assert {(row["truth"], row["checked"]) for row in found} == {
        ("revealed", "not checked: ValueError: no such loss")
    }
    assert len(calls) == 1


def test_the_models_mode_is_the_clients(tmp_path):
    found = audited(tmp_path, evaluating)
    assert {row["checked"] for row in found} == {"fits"}
