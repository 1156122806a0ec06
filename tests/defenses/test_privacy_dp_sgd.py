"""DP-SGD: each example is clipped by itself, and noise is as large as it says."""

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from support.private import norm
from support.tiny import ask, scenario, sent
from torch import nn
from torch.nn import functional

from defenses import DPSGD, Dropout
from fedsim import testing
from fedsim.defense import MeanGradient, Training
from fedsim.engine.inline import InlineGrid
from fedsim.engine.preflight import preflight
from fedsim.errors import ScenarioError
from fedsim.records import Batch


def loss(module, batch):
    return functional.cross_entropy(module(batch.inputs), batch.labels)


def training(module, batch, seed=0):
    plain = MeanGradient(loss, frozenset(name for name, _ in module.named_parameters()))
    rng = torch.Generator().manual_seed(seed)
    return Training(module, (batch,), loss, plain, "fedsgd", 0.1, 0.0, 0.0, rng)


def convolutional():
    return testing.network().module


def normalised():
    """GroupNorm and LayerNorm: what takes BatchNorm's place."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(64),
        nn.Linear(64, 10),
    )  # fmt: skip


class Own(nn.Module):
    """A layer that Opacus has no rule for: a parameter used by hand, twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.scale = nn.Parameter(torch.randn(36))
        self.head = nn.Linear(36, 10)

    def forward(self, inputs):
        hidden = inputs.flatten(1) * self.scale
        return self.head(torch.tanh(hidden) * self.scale)


def one_by_one(module, batch, clip):
    """DP-SGD's clipped mean, example by example in float64."""
    module = module.double()
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for x, y in zip(batch.inputs.double(), batch.labels, strict=True):
        grads = torch.autograd.grad(loss(module, Batch(x[None], y[None])), list(total_of(module)))
        size = torch.cat([g.detach().flatten() for g in grads]).norm()
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, clip / float(size))
    return {name: (value / len(batch)).float() for name, value in total.items()}


def total_of(module):
    return (p for _, p in module.named_parameters())


@pytest.mark.parametrize("build", [convolutional, normalised, Own])
@pytest.mark.parametrize("clip", [0.05, 1.0, 100.0])
@pytest.mark.parametrize("how", ["auto", "torch.func"])
def test_examples_are_clipped_one_by_one(build, clip, how):
    module, batch = build(), testing.batch(6)
    defense = DPSGD(clip=clip, noise_multiplier=0, per_example=how)
    prepared = defense.prepare(training(module, batch))
    ours, value = prepared.gradient(module, batch)
    assert value == pytest.approx(float(loss(module, batch).detach()), rel=1e-5)
    theirs = one_by_one(build(), batch, clip)
    for name, expected in theirs.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-7)
    assert norm(ours) <= clip * (1 + 1e-6)
    for single in range(6):
        alone = Batch(batch.inputs[single : single + 1], batch.labels[single : single + 1])
        assert norm(prepared.gradient(module, alone)[0]) <= clip * (1 + 1e-6)


class Tied(nn.Module):
    """Uses the weights of a layer once more, outside of it, where no hook sees them."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        return self.head(nn.functional.linear(hidden, self.first.weight))


class Plain(Tied):
    """Uses each layer once."""

    def forward(self, x):
        return self.head(torch.tanh(self.first(x)))


class Mixing(Tied):
    """Normalises by the batch, and is no layer that is known for it."""

    def forward(self, x):
        hidden = self.first(x)
        return self.head(hidden / (1 + hidden.abs().mean(dim=0)))


def weighted(module, batch):
    weight = torch.tensor([1.0, 50.0, 1.0])
    return nn.functional.cross_entropy(module(batch.inputs), batch.labels, weight=weight)


@pytest.mark.parametrize(("build", "criterion"), [(Tied, loss), (Mixing, loss), (Plain, weighted)])
def test_what_opacus_does_not_see_is_left_to_torch_func(build, criterion):
    torch.manual_seed(0)
    module, labels = build(), torch.tensor([0, 1, 1, 2])
    batch = Batch(torch.randn(4, 8), labels)
    names = frozenset(name for name, _ in module.named_parameters())
    found = DPSGD(clip=1e6, noise_multiplier=0).prepare(
        Training(
            module, (batch,), criterion, MeanGradient(criterion, names), "fedsgd", 0.1, 0.0, 0.0,
            torch.Generator(),
        )
    ).gradient(module, batch)[0]  # fmt: skip
    each = []
    for at in range(4):
        one = criterion(module, Batch(batch.inputs[at : at + 1], labels[at : at + 1]))
        each.append(torch.autograd.grad(one, [*module.parameters()]))
    for (name, _), *own in zip(module.named_parameters(), *each, strict=True):
        torch.testing.assert_close(found[name], torch.stack(own).mean(dim=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["opacus", "torch.func"])
def test_a_step_is_that_of_opacus_own_optimizer(how):
    batch, clip = testing.batch(5), 0.3
    module, theirs = convolutional(), GradSampleModule(convolutional(), loss_reduction="mean")
    ours, _ = (
        DPSGD(clip=clip, noise_multiplier=0, per_example=how)
        .prepare(training(module, batch))
        .gradient(module, batch)
    )
    optimizer = DPOptimizer(
        torch.optim.SGD(theirs.parameters(), lr=0.1),
        noise_multiplier=0.0,
        max_grad_norm=clip,
        expected_batch_size=5,
    )
    batch.inputs.requires_grad_()  # or Opacus' hooks warn
    loss(theirs, batch).backward()
    optimizer.pre_step()
    for (name, _), p in zip(module.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours[name], p.grad, rtol=1e-5, atol=1e-7)


def test_an_examples_noise_is_as_large_as_it_says():
    module, batch = convolutional(), testing.batch(4)
    defense = DPSGD(clip=2.0, noise_multiplier=3.0)
    gradients = {"a": torch.zeros(4, 200, 100)}
    noisy = defense.privatized(gradients, torch.Generator().manual_seed(0))
    assert float(noisy["a"].std()) == pytest.approx(2.0 * 3.0 / 4, rel=0.02)
    draws = [defense.prepare(training(module, batch, s)).gradient(module, batch)[0] for s in (0, 1)]
    assert not torch.equal(draws[0]["head.weight"], draws[1]["head.weight"])


def test_opacus_leaves_no_hook_and_no_gradient_behind():
    module, batch = convolutional(), testing.batch(3)
    hooks = [(len(m._forward_hooks), len(m._backward_hooks)) for m in module.modules()]
    prepared = DPSGD(per_example="opacus").prepare(training(module, batch))
    prepared.gradient(module, batch)
    assert hooks == [(len(m._forward_hooks), len(m._backward_hooks)) for m in module.modules()]
    for p in module.parameters():
        assert p.grad is None
        assert getattr(p, "grad_sample", None) is None


def test_batch_normalisation_is_refused_with_the_reason_and_the_fix():
    run = scenario(task={"model": "resnet20"}, defenses=[{"name": "dp-sgd"}])
    with pytest.raises(ScenarioError, match=r"batch normalisation \(norm.*whole batch.*GroupNorm"):
        preflight(run)


def test_what_an_earlier_defense_did_to_the_gradient_is_not_lost_in_silence():
    module, batch = convolutional(), testing.batch(3)
    other = training(module, batch).replace(gradient=lambda module, batch: ({}, 0.0))
    with pytest.raises(ScenarioError, match="List dp-sgd before"):
        DPSGD().prepare(other)


def test_opacus_alone_refuses_a_layer_it_has_no_rule_for():
    recurrent = nn.Sequential(nn.Flatten(), nn.LSTM(36, 10))
    with pytest.raises(ScenarioError, match=r"per_example = .torch.func"):
        DPSGD(per_example="opacus").prepare(training(recurrent, testing.batch(2)))


@pytest.mark.parametrize("algorithm", ["fedsgd", "fedavg"])
def test_training_with_dp_sgd_is_clipped_in_every_local_step(algorithm):
    private = {"name": "dp-sgd", "clip": 0.01, "noise_multiplier": 0.0}
    steps = 1 if algorithm == "fedsgd" else 3
    extra = {"algorithm": algorithm, "local_steps": steps, "lr": 0.5}
    run = scenario(training=extra, defenses=[private])
    task = run.build_task()
    before = task.arrays(task.module())
    after = sent(ask(InlineGrid(6), run, 0))
    if algorithm == "fedsgd":
        assert norm(after) <= 0.01 * (1 + 1e-6)
    else:
        moved = norm({name: after[name] - before[name] for name in before})
        assert 0 < moved <= 3 * 0.5 * 0.01 * (1 + 1e-4)


@pytest.mark.parametrize("order", [("dropout", "dp-sgd"), ("dp-sgd", "dropout")])
@pytest.mark.parametrize("before", [(), ("head",)])
def test_dropout_and_dp_sgd_work_together_whatever_their_order(order, before):
    """Without a clip that bites, DP-SGD under dropout is dropout's own mean gradient."""
    module, batch = convolutional(), testing.batch(4)
    dropout = Dropout(rate=0.5, before=before)

    def gradient(prepared):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return prepared.gradient(module, batch)[0]

    expected = gradient(dropout.prepare(training(module, batch)))
    for clip in (1e6, 0.1):
        both = {"dropout": dropout, "dp-sgd": DPSGD(clip=clip, noise_multiplier=0)}
        prepared = training(module, batch)
        for name in order:
            prepared = both[name].prepare(prepared)
        found = gradient(prepared)
        if clip > 1:
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)
        else:
            assert norm(found) <= clip * (1 + 1e-6)


class Aside(nn.Module):
    """A weight used outside its layer, which Opacus' hooks do not see."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(36, 10)
        self.tied = nn.Linear(36, 10)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.head(flat) + functional.linear(flat.tanh(), self.tied.weight)


def test_weights_used_outside_their_layer_go_by_torch_func():
    module, batch = Aside(), testing.batch(4)
    ours, _ = (
        DPSGD(clip=0.3, noise_multiplier=0).prepare(training(module, batch)).gradient(module, batch)
    )
    total = {name: torch.zeros_like(p) for name, p in module.named_parameters()}
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        value = loss(module, Batch(x[None], y[None]))
        grads = torch.autograd.grad(value, list(total_of(module)), materialize_grads=True)
        size = torch.cat([g.detach().flatten() for g in grads]).norm()
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, 0.3 / float(size)) / 4
    for name, expected in total.items():
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-7)
    only = DPSGD(clip=0.3, per_example="opacus").prepare(training(module, batch))
    with pytest.raises(ScenarioError, match="outside its layer"):
        only.gradient(module, batch)
