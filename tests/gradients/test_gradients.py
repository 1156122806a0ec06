"""From an update to the gradient behind it, against torch's own SGD."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedsim.gradients import head_gradient, squared_distance, to_gradient
from fedsim.gradients.distances import cosine_distance, l1_l2_distance
from fedsim.records import Update

rates = st.floats(1e-4, 10.0)
seeds = st.integers(0, 10_000)


def network(seed: int, bias: bool = True) -> nn.Module:
    """A small network in float64, so that a tolerance tests the algebra and not the rounding."""
    rng = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3, bias=bias))
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=rng)
    return module


def loss(module: nn.Module, seed: int, size: int = 5) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(size, 4, generator=rng, dtype=torch.float64)
    return nn.functional.cross_entropy(module(inputs), torch.randint(3, (size,), generator=rng))


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def gradients(module: nn.Module, value: torch.Tensor) -> dict[str, torch.Tensor]:
    found = torch.autograd.grad(value, list(module.parameters()))
    return dict(zip(dict(module.named_parameters()), found, strict=True))


def close(ours, theirs, rtol=1e-6, atol=1e-9) -> bool:
    return ours.keys() == theirs.keys() and all(
        torch.allclose(ours[k], theirs[k], rtol=rtol, atol=atol) for k in ours
    )


@given(seeds, rates, st.floats(0, 0.99), st.sampled_from([0.0, 1e-4, 0.1]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_one_step_of_sgd_gives_its_gradient_back(seed, lr, momentum, decay, bias):
    module = network(seed, bias)
    before, true = weights(module), gradients(module, loss(module, seed))
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum, weight_decay=decay)
    loss(module, seed).backward()
    optimizer.step()
    after = weights(module)
    local = {"lr": lr, "momentum": momentum, "weight_decay": decay}
    delta = {name: after[name] - before[name] for name in after}
    for update in (
        Update(after, "weights", **local),
        Update(delta, "delta", **local),
        Update(true, "gradient", **local),
    ):
        found, exact = to_gradient(update, before, lr=lr, steps=1)
        assert exact
        assert close(found, true, atol=1e-8)


@given(seeds, rates, st.integers(2, 6), st.sampled_from([0.0, 0.5, 0.9]))
@settings(max_examples=40, deadline=None)
def test_steps_along_a_frozen_path_give_the_mean_gradient(seed, lr, steps, momentum):
    # A loss linear in the weights has the same gradient wherever the path goes. Without momentum
    # it may differ from step to step; momentum weighs the steps unequally.
    module = network(seed)
    before = weights(module)
    rng = torch.Generator().manual_seed(seed)
    slopes = [
        {k: torch.randn(v.shape, generator=rng, dtype=v.dtype) for k, v in before.items()}
        for _ in range(steps)
    ]
    slopes = slopes[:1] * steps if momentum else slopes
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum)
    for slope in slopes:
        optimizer.zero_grad()
        sum((slope[k] * p).sum() for k, p in module.named_parameters()).backward()
        optimizer.step()
    update = Update(weights(module), "weights", lr=lr, momentum=momentum, steps=steps)
    found, exact = to_gradient(update, before, lr=lr, steps=steps)
    mean = {k: sum(slope[k] for slope in slopes) / steps for k in before}
    assert not exact
    assert close(found, mean, atol=1e-8)


@given(seeds, st.floats(1e-6, 1e-4), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_small_real_steps_give_nearly_the_mean_gradient(seed, lr, steps):
    module = network(seed)
    before = weights(module)
    mean = {k: torch.zeros_like(v) for k, v in before.items()}
    for step in range(steps):
        for name, value in gradients(module, loss(module, seed + step)).items():
            mean[name] += value / steps
    optimizer = torch.optim.SGD(module.parameters(), lr)
    for step in range(steps):
        optimizer.zero_grad()
        loss(module, seed + step).backward()
        optimizer.step()
    update = Update(weights(module), "weights", lr=lr, steps=steps)
    found, _ = to_gradient(update, before, lr=lr, steps=steps)
    assert close(found, mean, rtol=0.05, atol=0.02)


@given(seeds, rates)
@settings(max_examples=20, deadline=None)
def test_without_the_learning_rate_the_direction_is_right(seed, lr):
    module = network(seed)
    before, true = weights(module), gradients(module, loss(module, seed))
    after = {k: before[k] - lr * true[k] for k in before}
    found, exact = to_gradient(Update(after, "weights", lr=lr), before)
    assert not exact
    assert close({k: v / lr for k, v in found.items()}, true, atol=1e-8)


@pytest.mark.parametrize(
    ("update", "known", "exact"),
    [
        ({"kind": "gradient"}, {}, True),
        ({"kind": "delta"}, {"lr": 0.1, "steps": 1}, True),
        ({"kind": "delta"}, {"lr": 0.1, "steps": 2}, False),
        ({"kind": "delta"}, {"lr": 0.1}, False),
        ({"kind": "delta"}, {"steps": 1}, False),
        ({"kind": "delta", "optimizer": "adam"}, {"lr": 0.1, "steps": 1}, False),
    ],
)
def test_exact_is_said_only_where_it_is(update, known, exact):
    tensors = {"w": torch.ones(2)}
    assert to_gradient(Update(tensors, **update), tensors, **known)[1] is exact


@pytest.mark.parametrize("kind", ["gradient", "delta", "weights"])
def test_the_update_is_left_alone(kind):
    tensors, before = {"w": torch.ones(2)}, {"w": torch.zeros(2)}
    found, _ = to_gradient(Update(tensors, kind), before, lr=0.5, steps=1)
    found["w"].fill_(9)
    assert torch.equal(tensors["w"], torch.ones(2))
    assert torch.equal(before["w"], torch.zeros(2))


@given(seeds, st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_the_class_sums_of_cross_entropy_add_up_to_zero(seed, size):
    # LLG's invariant: the rows of dL/dW are (p_i - y_i) h', and both p and y sum to one.
    module = network(seed)
    found = head_gradient(gradients(module, loss(module, seed, size)), "2", 3)
    assert float(found.class_sums().sum()) == pytest.approx(0, abs=1e-12)
    assert float(found.bias.sum()) == pytest.approx(0, abs=1e-12)


def test_the_head_is_found_by_name_and_turned():
    weight = torch.arange(6.0).view(2, 3)
    assert torch.equal(head_gradient({"h.weight": weight}, "h", 3).weight, weight.T)
    assert head_gradient({"h.weight": weight}, "h", 2).bias is None
    with pytest.raises(ValueError, match="could be the head: h"):
        head_gradient({"h.weight": weight}, "head", 3)
    with pytest.raises(ValueError, match="side of 7"):
        head_gradient({"h.weight": weight}, "h", 7)


def test_the_distance_is_a_sum_over_parameters_of_every_row():
    ours = {"a": torch.tensor([[1.0, 2.0], [0.0, 0.0]]), "b": torch.tensor([[5.0], [3.0]])}
    theirs = {name: torch.zeros_like(value) for name, value in ours.items()}
    assert squared_distance(ours, theirs).tolist() == [30, 9]
    assert squared_distance(ours, theirs, {"b": 2.0}).tolist() == [55, 18]


def test_a_parameter_of_a_single_number_counts_as_a_row_of_one():
    ours = {"w": torch.tensor([[3.0], [0.0]]), "scale": torch.tensor([4.0, 2.0])}
    rows = {name: value.view(2, 1) for name, value in ours.items()}
    theirs = {name: torch.ones_like(value) for name, value in ours.items()}
    for distance in (squared_distance, cosine_distance, l1_l2_distance):
        expected = distance(rows, {name: value.view(2, 1) for name, value in theirs.items()})
        assert torch.equal(distance(ours, theirs), expected)
