"""Gradients of many dummy batches in one pass, and the distances between gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedsim.gradients import (
    DummyGradients,
    Outer,
    cosine_distance,
    l1_l2_distance,
    squared_distance,
)
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SHAPE, CLASSES = (1, 12, 12), 5


def victim(name: str, **settings: object) -> VictimModel:
    torch.manual_seed(3)
    module = as_architecture({"name": name, **settings}).build(SHAPE, CLASSES).double()
    return VictimModel(module, head="head", loss=cross_entropy)


def batches(rows: int, size: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    inputs = torch.rand((rows, size, *SHAPE), generator=rng, dtype=torch.float64)
    targets = torch.rand((rows, size, CLASSES), generator=rng, dtype=torch.float64)
    return inputs, targets.softmax(dim=2)


def dense(value: Tensor | Outer) -> Tensor:
    return value.dense if isinstance(value, Outer) else value


# gradients of many dummy batches


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    ("model", "together"),
    [
        ({"name": "cnn"}, True),
        ({"name": "lenet"}, True),
        ({"name": "resnet20", "activation": "sigmoid"}, False),  # batch statistics
    ],
    ids=lambda value: value["name"] if isinstance(value, dict) else "",
)
def test_every_batch_gets_the_gradient_it_would_have_alone(model, together, size):
    attacked = victim(**model)
    names = list(attacked.parameters())
    dummy = DummyGradients(attacked, names, shape=SHAPE, classes=CLASSES)
    assert dummy.batched is together
    inputs, targets = batches(2, size)
    found = dummy(inputs, targets)
    assert list(found) == names
    for row in range(2):
        alone = attacked.gradient(inputs[row], targets[row])
        for name in names:
            torch.testing.assert_close(dense(found[name])[row], alone[name], rtol=1e-9, atol=1e-12)


def test_one_can_differentiate_through_them():
    attacked = victim("cnn")
    names = list(attacked.parameters())
    inputs, targets = batches(2, 2)
    inputs.requires_grad_(True)

    def slope(gradients):
        total = sum(dense(value).square().sum() for value in gradients.values())
        return torch.autograd.grad(total, inputs)[0]

    dummy = DummyGradients(attacked, names, shape=SHAPE, classes=CLASSES)
    together = slope(dummy(inputs, targets))
    torch.testing.assert_close(together, slope(dummy._in_turn(inputs, targets)), rtol=1e-8, atol=0)


def test_only_the_wanted_parameters_are_answered():
    dummy = DummyGradients(victim("cnn"), ["head.bias"], shape=SHAPE, classes=CLASSES)
    assert {k: tuple(v.shape) for k, v in dummy(*batches(2, 1)).items()} == {"head.bias": (2, 5)}


class _Shared(nn.Module):
    """One layer used twice: its gradient is not one product."""

    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Linear(144, 144)
        self.head = nn.Linear(144, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.same(inputs.flatten(1)))
        return self.head(torch.sigmoid(self.same(hidden)))


def test_a_layer_used_twice_is_found_out():
    model = VictimModel(_Shared().double(), head="head", loss=cross_entropy)
    dummy = DummyGradients(model, list(model.parameters()), shape=SHAPE, classes=CLASSES)
    assert not dummy.batched
    inputs, targets = batches(2, 1)
    alone = model.gradient(inputs[1], targets[1])["same.weight"]
    torch.testing.assert_close(dummy(inputs, targets)["same.weight"][1], alone)


class _Faint(nn.Module):
    """A weight that is used twice, with a gradient far below that of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.side, self.back = (nn.Linear(144, CLASSES) for _ in range(3))
        self.back.weight = self.side.weight

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return self.head(flat) + 1e-4 * (self.side(flat) + self.back(flat.flip(1)))


def test_a_parameter_with_a_small_gradient_is_compared_by_its_own_size():
    model = VictimModel(_Faint().double(), head="head", loss=cross_entropy)
    names = list(model.parameters())
    found = DummyGradients(model, names, shape=SHAPE, classes=CLASSES)(*batches(2, 3))
    alone = model.gradient(*(one[1] for one in batches(2, 3)))["side.weight"]
    torch.testing.assert_close(dense(found["side.weight"])[1], alone)


def test_a_loss_that_is_a_sum_is_found_out():
    module = victim("cnn").module

    def summed(module, inputs, target, **_):
        return nn.functional.cross_entropy(module(inputs), target, reduction="sum")

    model = VictimModel(module, head="head", loss=summed)
    assert not DummyGradients(model, ["head.bias"], shape=SHAPE, classes=CLASSES).batched


# distances


@given(seed=st.integers(0, 2**31), near=st.floats(1e-6, 10))
def test_outer_products_are_as_far_apart_as_their_matrices(seed, near):
    rng = torch.Generator().manual_seed(seed)
    a, b, c, d = (torch.randn(2, n, generator=rng, dtype=torch.float64) for n in (4, 7, 4, 7))
    one, other = Outer(a, b), Outer(a + near * c, b + near * d)
    for distance in (squared_distance, cosine_distance):
        found = distance({"w": one}, {"w": other})
        expected = distance({"w": one.dense}, {"w": other.dense})
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)
    mixed = squared_distance({"w": one}, {"w": other.dense})
    torch.testing.assert_close(mixed, squared_distance({"w": one}, {"w": other}), rtol=1e-7, atol=0)


def test_a_near_match_of_outer_products_loses_no_digits():
    torch.manual_seed(0)
    left, right = torch.randn(1, 10), 50 * torch.rand(1, 768)
    apart = 1e-3 * torch.randn(1, 768)
    found = squared_distance({"w": Outer(left, right + apart)}, {"w": Outer(left, right)})
    expected = left.double().square().sum() * ((right + apart) - right).double().square().sum()
    assert float(found) == pytest.approx(float(expected), rel=1e-2)


def test_a_matrix_of_rank_one_is_factored_and_any_other_is_not():
    rng = torch.Generator().manual_seed(0)
    product = Outer(torch.randn(3, 4, generator=rng), torch.randn(3, 6, generator=rng))
    torch.testing.assert_close(Outer.of(product.dense).dense, product.dense)
    assert Outer.of(torch.randn(3, 4, 6, generator=rng)) is None
    assert Outer.of(torch.zeros(1, 4, 6)) is None


def test_distances_have_known_values():
    ours = {"a": torch.tensor([[3.0, 0.0]]), "b": torch.tensor([[4.0]])}
    theirs = {"a": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([[4.0]])}
    assert float(squared_distance(ours, theirs)) == 18
    assert float(cosine_distance(ours, theirs)) == pytest.approx(1 - 16 / 25)
    assert float(l1_l2_distance(ours, theirs, l1=0.5)) == 18 + 3
