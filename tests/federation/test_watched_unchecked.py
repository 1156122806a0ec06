"""Trainings that the consistency check cannot repeat: it says why, and does not call them right."""

import pytest
import torch
from opacus import PrivacyEngine
from support.tiny import rows
from support.watched import audited, checks, data, momentum, steps
from torch import nn
from torch.utils.data import DataLoader

from fedsim import load, reveal
from fedsim.errors import ScenarioError

pytestmark = pytest.mark.usefixtures("unreported")


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


def later_groups(net, loader):
    optimizer = torch.optim.SGD(net.out.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if len(optimizer.param_groups) == 1:  # the other layers are unfrozen
            optimizer.add_param_group({"params": net.first.parameters(), "lr": 0.01})


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


def untrained(net, loader):
    """A client that sits a round out."""


NO_LABELS = "its labels are missing, or numbers that are no classes"
UNCHECKED = {
    by_hand: ("revealed", "no optimizer took a step: weights were changed by hand"),
    hidden_batches: ("partial", NO_LABELS),
    two_optimizers: ("revealed", "several optimizers took steps"),
    tiny_rate: ("revealed", "the change of most weights is within rounding"),
    later_groups: ("revealed", "the optimizer's groups of parameters changed between steps"),
    wrapped: ("revealed", "the optimizer is wrapped by another one (Around)"),
    several_parts: ("partial", NO_LABELS),
    no_classes: ("partial", "its labels are not one class for each example"),
}


def test_what_cannot_be_checked_says_why(tmp_path):
    with pytest.warns(UserWarning, match="client 1 revealed in round 1 has no class labels"):
        findings = audited(tmp_path, *UNCHECKED, record={"keep": "all"})
    found = checks(findings, *UNCHECKED)
    assert found == {
        one.__name__: ("ok", truth, f"not checked: {why}")
        for one, (truth, why) in UNCHECKED.items()
    }
    groups = [*UNCHECKED].index(later_groups)
    updates = {one.clients[0]: one.update for one in load(tmp_path / "run").recording()}
    assert updates[groups].lr is None  # no one rate is that of all layers
    by_hands = [row for row in rows(tmp_path / "run") if row["client"] == "0"]
    assert {row["local_steps"] for row in by_hands} == {""}  # which nobody saw or stated


def test_a_client_that_did_not_train_is_not_said_to_have_changed_its_weights(tmp_path):
    found = checks(audited(tmp_path, momentum, untrained), momentum, untrained)
    why = "not checked: the client sent back the arrays that it received"
    assert found["untrained"] == ("failed", "absent", why)


def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 4))


def private(net, loader):
    """Training with Opacus, which clips the gradient of each example and adds noise."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net, optimizer, drawn = PrivacyEngine().make_private(
        module=net, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    steps(net, reveal(drawn), optimizer)


@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_private_training_cannot_be_repeated_and_is_no_misfit(tmp_path):
    found = checks(audited(tmp_path, private, model=plain), private)
    why = "not checked: the optimizer is wrapped by another one (Opacus)"
    assert found == {"private": ("ok", "revealed", why)}


def test_hidden_batches_are_as_large_as_stated(tmp_path):
    def hidden(net, loader):
        steps(net, loader, torch.optim.SGD(net.parameters(), lr=0.1))  # 4 batches of 8

    stated = {"batch_size": 8}
    example = (torch.zeros(2, 1, 8, 8), torch.zeros(2).long())
    found = audited(tmp_path, hidden, training=stated, example=example, record={"keep": "all"})
    assert {(row["local_steps"], row["batch_size"]) for row in found} == {("4", "8")}
    (one,) = load(tmp_path / "run").recording()
    assert (one.update.steps, one.update.num_examples) == (4, 32)


def test_a_check_that_raises_says_so_and_is_made_once(tmp_path):
    calls = []

    def loss(module, inputs, target, **more):
        calls.append(len(inputs))
        raise ValueError("no such loss")

    found = audited(tmp_path, momentum, loss=loss)
    assert {(row["truth"], row["checked"]) for row in found} == {
        ("revealed", "not checked: ValueError: no such loss")
    }
    assert calls.count(8) == 1, "the others are of random inputs"


def numbers(net, loader):
    """A client that learns numbers, by a loss that nobody stated."""
    pairs = [(x, y.float() / 2) for x, y in loader.dataset]
    distance = lambda logits, y: nn.functional.mse_loss(logits[:, 0], y)  # noqa: E731
    batches = reveal(DataLoader(pairs, batch_size=8))
    steps(net, batches, torch.optim.SGD(net.parameters(), lr=0.1), distance)


def test_labels_that_are_no_classes_are_warned_of_where_no_loss_is_stated(tmp_path):
    with pytest.warns(UserWarning, match=r"has no class labels .* Give loss="):
        audited(tmp_path / "without", numbers)
    stated = lambda module, inputs, target, **_: module(inputs)[:, 0].square().mean()  # noqa: E731
    audited(tmp_path / "with", numbers, loss=stated)  # warnings are errors


def test_a_loss_that_attacks_cannot_call_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match=r"loss takes \(output, target\), expected \(module, "):
        audited(tmp_path, numbers, loss=lambda output, target: output.mean())
