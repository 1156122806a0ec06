"""Traps in which an audit would be wrong in silence: each is read right, named, or not counted."""

import tomllib

import pytest
import torch
from support.watched import audited, checks, momentum, steps
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from fedsim import load, reveal
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.report import summary
from fedsim.scenario import Scenario

pytestmark = pytest.mark.usefixtures("unreported")


def adam(net, loader):
    steps(net, reveal(loader), torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=0.1))


def adamw(net, loader):
    steps(net, reveal(loader), torch.optim.AdamW(net.parameters(), lr=0.01))


def adagrad(net, loader):
    steps(net, reveal(loader), torch.optim.Adagrad(net.parameters(), lr=0.01))


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


def averaged(net, loader, every=2):
    """Gradient accumulation as Lightning has it: each loss is divided."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(reveal(loader), 1):
        (nn.functional.cross_entropy(net(x), y) / every).backward()
        if number % every == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def averaged_with_a_rest(net, loader):
    averaged(net, loader, every=3)


def by_examples(net, loader):
    """Gradient accumulation as transformers has it: each example counts the same."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    unequal = DataLoader(loader.dataset, batch_size=20)
    for x, y in reveal(unequal):
        (nn.functional.cross_entropy(net(x), y, reduction="sum") / len(loader.dataset)).backward()
    optimizer.step()


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


def checkpointed(net, loader):
    """As large models are trained: the hidden layers are computed again in the backward pass."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(checkpoint(net, x, use_reentrant=False), y).backward()
        optimizer.step()


def decayed(net, loader):
    """Weight decay for weights and none for biases and norms, as Hugging Face's Trainer has it."""
    weights = [one for one in net.parameters() if one.dim() > 1]
    others = [one for one in net.parameters() if one.dim() == 1]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 4)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()


def faster_head(net, loader):
    groups = [{"params": net.first.parameters()}, {"params": net.out.parameters(), "lr": 0.5}]
    steps(net, reveal(loader), torch.optim.SGD(groups, lr=0.05, momentum=0.9))


def normalised_ahead(net, loader):
    """Two groups, and changed inputs while another batch waits."""
    batches = iter(reveal(loader))
    groups = [{"params": net.first.parameters()}, {"params": net.out.parameters(), "lr": 0.5}]
    optimizer, ahead = torch.optim.SGD(groups, lr=0.05), next(batches)
    for following in [*batches, None]:
        (x, y), ahead = ahead, following
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(2 * x - 1), y).backward()
        optimizer.step()


def in_half(net, loader):
    """A client that sends its weights in half precision."""
    net.eval()
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
    net.half()


EXPLAINED = [
    momentum, adam, adamw, adagrad, augmented, normalised, scheduled, averaged, second_epoch,
    averaged_with_a_rest, by_examples,
    warmed_up, one_cycle, frozen, in_a_column, by_keyword, loaded_ahead, listed, closure,
    decayed, faster_head, normalised_ahead, checkpointed, in_half,
]  # fmt: skip


def test_what_was_seen_explains_the_update(tmp_path):
    found = checks(audited(tmp_path, *EXPLAINED, record={"keep": "all"}), *EXPLAINED)
    assert found == {one.__name__: ("ok", "revealed", "fits") for one in EXPLAINED}
    updates = {one.clients[0]: one.update for one in load(tmp_path / "run").recording()}
    for one in (decayed, faster_head):  # no one rate, momentum or decay is that of all layers
        update = updates[EXPLAINED.index(one)]
        assert (update.lr, update.momentum, update.weight_decay) == (None, 0.0, 0.0)
    assert updates[EXPLAINED.index(adam)].weight_decay == 0.1


def test_what_differs_between_groups_is_stated_nowhere(tmp_path):
    audited(tmp_path, faster_head)
    stated = tomllib.loads((tmp_path / "run/scenario.toml").read_text())["training"]
    assert stated["local_steps"] == 4
    assert not {"lr", "momentum", "weight_decay"} & stated.keys()


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


def mixed_up(net, loader):
    """Mixup with a weight so large that the gradient hardly differs."""
    net.eval()  # without dropout
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        logits = net(0.99 * x + 0.01 * x.flip(0))
        loss = nn.functional.cross_entropy
        (0.99 * loss(logits, y) + 0.01 * loss(logits, y.flip(0))).backward()
        optimizer.step()
        break


MISFITS = {
    smoothed: "label smoothing of 0.1",
    clipped: "gradients clipped to norm 0.5",
    summed: "a loss summed over examples",
    mixed: "autocast in bfloat16",
    accumulated: "losses of a step's batches added up, and not averaged",
    others_labels: "none of 11 ways of training fits",
    mixed_up: "none of 10 ways of training fits",
}


@pytest.mark.reported
def test_a_misfit_is_named_and_enters_no_average(tmp_path):
    with pytest.warns(UserWarning, match="does not explain its update"):
        found = audited(tmp_path, *MISFITS)
    assert checks(found, *MISFITS) == {
        one.__name__: ("unverified", "revealed", f"misfit: {which}")
        for one, which in MISFITS.items()
    }
    assert {row["value"] for row in found} != {""}  # kept, for whoever looks
    with pytest.raises(RunFolderError, match="of another Flower project, which alone can go on"):
        simulate(Scenario.load(tmp_path / "run/scenario.toml"), tmp_path / "run", resume=True)
    table = load(tmp_path / "run").findings
    assert table["value"].notna().any()
    assert table["counted"].isna().all()
    for row in summary(tmp_path / "run"):
        assert (row["n"], row["mean"], row["unverified"]) == (0, None, len(MISFITS))
        assert f"{len(MISFITS)} unverified" in row["sentence"]
    assert "unverified" in (tmp_path / "run/report.html").read_text()


def test_the_models_mode_is_the_clients(tmp_path):
    found = audited(tmp_path, evaluating)
    assert {row["checked"] for row in found} == {"fits"}
