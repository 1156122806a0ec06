"""Models as clients train them: each layer in its mode, wrapped, compiled, or as a function."""

import pytest
import torch
from support.watched import audited, checks, one_step, steps, values
from torch import nn

from adversaries import DLG
from fedsim import reveal

pytestmark = pytest.mark.usefixtures("unreported")


class Net(nn.Module):
    """A smooth network with dropout."""

    def __init__(self):
        super().__init__()
        self.hidden, self.drops, self.out = nn.Linear(16, 24), nn.Dropout(0.5), nn.Linear(24, 4)

    def forward(self, x):
        return self.out(self.drops(torch.sigmoid(self.hidden(x.flatten(1)))))


class Plain(Net):
    """The same for images of 8 x 8, without dropout."""

    def __init__(self):
        super().__init__()
        self.hidden, self.drops = nn.Linear(64, 24), nn.Identity()


@pytest.mark.parametrize(("quiet", "recovered"), [(0, [1.0, 0.0]), (1, [0.0, 1.0])])
def test_a_client_in_evaluation_mode_is_attacked_without_dropout(quiet, recovered, tmp_path):
    def loss(net, client):
        image = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(client))
        net.train(client != quiet)
        ((x, y),) = reveal([(image, torch.tensor([client]))])
        return nn.functional.cross_entropy(net(x), y), 1

    attack = DLG(iterations=60, restarts=0)
    found = one_step(tmp_path / "run", Net, loss, attack, threat={"grants": "full"})
    assert {row["checked"] for row in found} == {"fits"}
    assert values(found, "dlg", "recovered") == recovered


def frozen(net, loader):
    net.first[2].eval()  # batch normalisation, in fine-tuning
    steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1))


def wrapped(net, loader):
    """A client that calls a wrapper: layers have other names there, and some are frozen."""
    net.first[2].eval()
    net.first[1].requires_grad_(False)
    groups = [{"params": net.first[2].parameters(), "lr": 0.01}, {"params": net.out.parameters()}]
    steps(nn.DataParallel(net), reveal(loader), torch.optim.SGD(groups, lr=0.1))


def compiled(net, loader):
    net.first.requires_grad_(False)
    called = torch.compile(net, backend="eager", fullgraph=True)
    steps(called, reveal(loader), torch.optim.SGD(net.out.parameters(), lr=0.1))


def in_place(net, loader):
    """A model that is compiled in place as one graph, in evaluation mode, with scaled inputs."""
    net.compile(backend="eager", fullgraph=True)
    net.eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    steps(net, reveal(loader), optimizer, before=lambda x: 2 * x - 1)


def function(net, loader):
    """A training step that is compiled as one graph."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="eager", fullgraph=True)
    def loss(x, y):
        return nn.functional.cross_entropy(net(x), y)

    for x, y in reveal(loader):
        optimizer.zero_grad()
        loss(x, y).backward()
        optimizer.step()


def functional(net, loader):
    """Gradients of a function of the parameters (`torch.func`)."""
    optimizer, named = torch.optim.SGD(net.parameters(), lr=0.1), dict(net.named_parameters())
    for x, y in reveal(loader):

        def loss(parameters, x=x, y=y):
            logits = torch.func.functional_call(net, parameters, (x,))
            return nn.functional.cross_entropy(logits, y)

        for name, gradient in torch.func.grad(loss)(named).items():
            named[name].grad = gradient.detach()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_compiled_models_and_functions_train_as_without_a_watch(tmp_path):
    trains, compile_ = (in_place, function, functional), nn.Module.compile
    found = checks(audited(tmp_path, *trains, model=Plain), *trains)
    assert found == {one.__name__: ("ok", "revealed", "fits") for one in trains}
    assert nn.Module.compile is compile_


@pytest.mark.filterwarnings("ignore:Using `torch.compile:UserWarning")
def test_layers_are_known_by_the_names_in_the_reply(tmp_path):
    found = checks(audited(tmp_path, wrapped, compiled), wrapped, compiled)
    assert found == dict.fromkeys(("wrapped", "compiled"), ("ok", "revealed", "fits"))


def test_training_with_frozen_layers_fits(tmp_path):
    found = checks(audited(tmp_path, frozen), frozen)
    assert found == {"frozen": ("ok", "revealed", "fits")}


@pytest.mark.parametrize("power", [1, 2])
def test_the_proximal_term_of_fedprox_is_no_misfit(power, tmp_path):
    def proximal(net, loader):
        start = [one.detach().clone() for one in net.parameters()]

        def loss(logits, y):
            away = [(a - b).norm() ** power for a, b in zip(net.parameters(), start, strict=True)]
            return nn.functional.cross_entropy(logits, y) + 1.0 / 2 * sum(away)

        steps(net, reveal(loader), torch.optim.SGD(net.parameters(), lr=0.1), loss)

    found = checks(audited(tmp_path, proximal, sent={"proximal-mu": 1.0}), proximal)
    assert found == {"proximal": ("ok", "revealed", "fits")}
