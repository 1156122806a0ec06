"""Chains of layers: their gradients and the derivative of these, beside autograd's."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.gradients import DummyGradients, Outer
from fedsim.gradients.chain import ChainGradients, chain_of
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel


def small(shape: tuple[int, int, int]) -> nn.Sequential:
    """Two convolutions, with and without bias, strides that leave a rest, and two linear layers."""
    torch.manual_seed(0)
    below = nn.Sequential(
        nn.Conv2d(shape[0], 4, (3, 5), stride=2, padding=(1, 2)),
        nn.Sigmoid(),
        nn.Conv2d(4, 3, 3, stride=(1, 2), bias=False),
        nn.Tanh(),
    )
    width = below(torch.zeros(1, *shape)).numel()
    return nn.Sequential(
        below, nn.Flatten(), nn.Linear(width, 6), nn.Tanh(), nn.Linear(6, 5)
    ).double()


def victim(module: nn.Module, loss=cross_entropy) -> VictimModel:
    return VictimModel(module, head="4", loss=loss)


def dense(value: Tensor | Outer) -> Tensor:
    return value.dense if isinstance(value, Outer) else value


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("shape", [(2, 9, 12), (3, 8, 7)])
@pytest.mark.parametrize("some", [slice(None), slice(0, 1), slice(1, 3), slice(-1, None)], ids=str)
def test_gradients_and_their_derivative_are_those_of_autograd(size, shape, some):
    model = victim(small(shape))
    names = list(model.parameters())[some]
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand((2, size, *shape), generator=rng, dtype=torch.float64).requires_grad_()
    logits = torch.rand((2, size, 5), generator=rng, dtype=torch.float64).requires_grad_()

    def computed(gradients):
        values = [dense(value) for value in gradients(inputs, logits.softmax(dim=2)).values()]
        factors = [torch.randn(v.shape, generator=torch.Generator().manual_seed(2)) for v in values]
        total = sum((v.square() + f * v).sum() for v, f in zip(values, factors, strict=True))
        return [*values, *torch.autograd.grad(total, (inputs, logits))]

    chain = ChainGradients.of(model, names, shape=shape, classes=5)
    assert chain is not None
    plain = DummyGradients(model, names, shape=shape, classes=5)
    for ours, theirs in zip(computed(chain), computed(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


def test_a_head_of_one_example_is_an_outer_product():
    model = victim(small((2, 9, 12)))
    chain = ChainGradients.of(model, ["4.weight", "0.2.weight"], shape=(2, 9, 12), classes=5)
    assert chain is not None
    inputs, targets = torch.rand(3, 1, 2, 9, 12).double(), torch.rand(3, 1, 5).double()
    found = chain(inputs, targets)
    assert list(found) == ["4.weight", "0.2.weight"]
    assert isinstance(found["4.weight"], Outer)
    assert found["0.2.weight"].shape == (3, 3, 4, 3, 3)


class Own(nn.Module):
    """A module whose forward pass is not known."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


@pytest.mark.parametrize(
    "layer",
    [
        nn.ReLU(),
        Own(),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"),
        nn.Flatten(start_dim=2),
    ],
    ids=str,
)
def test_other_layers_are_no_chain(layer):
    assert chain_of(nn.Sequential(nn.Conv2d(2, 2, 3), layer)) is None
    assert chain_of(layer) is None


def test_a_layer_used_twice_is_no_chain():
    layer = nn.Linear(4, 4)
    assert chain_of(nn.Sequential(layer, nn.Tanh(), layer)) is None


def test_another_loss_is_left_to_autograd():
    def smoothed(module, inputs, target, **_):
        return functional.cross_entropy(module(inputs), target, label_smoothing=0.1)

    model = victim(small((2, 9, 12)), smoothed)
    names = list(model.parameters())
    assert ChainGradients.of(model, names, shape=(2, 9, 12), classes=5) is None


def test_the_derivative_cannot_be_differentiated_again():
    model = victim(small((2, 9, 12)))
    chain = ChainGradients.of(model, ["4.bias"], shape=(2, 9, 12), classes=5)
    assert chain is not None
    inputs = torch.rand(1, 1, 2, 9, 12).double().requires_grad_()
    found = chain(inputs, torch.ones(1, 1, 5).double() / 5)["4.bias"]
    (slope,) = torch.autograd.grad(found.square().sum(), inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_inputs_that_do_not_fit_the_layers_are_left_to_autograd():
    model = victim(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(2, 5)))
    assert ChainGradients.of(model, ["2.bias"], shape=(30,), classes=5) is None
