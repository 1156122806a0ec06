"""Heads and losses that a user's own model may have: frozen, narrow, smoothed, weighted."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional

from adversaries import DLG, RGAP, SPEAR, ExactBatch, FeatureSeparation
from fedsim import testing
from fedsim.spec import Column, ImageSpec, TabularSpec
from fedsim.victim import VictimModel

SHAPE = (1, 6, 6)


def entropy(module, inputs, target, **_):
    return functional.cross_entropy(module(inputs), target)


def perceptron(classes, *, hidden=64, act=nn.ReLU, head_bias=True, pixels=36):
    layers = nn.Sequential()
    layers.add_module("flat", nn.Flatten())
    layers.add_module("hidden", nn.Linear(pixels, hidden))
    layers.add_module("act", act())
    layers.add_module("head", nn.Linear(hidden, classes, bias=head_bias))
    return layers


def victim(module, loss=entropy, frozen=(), spec=None):
    trained = [name for name, _ in module.named_parameters() if name not in frozen]
    return VictimModel(module, head="head", loss=loss, trained=trained, spec=spec)


def images(size, seed=0):
    return torch.rand(size, *SHAPE, generator=torch.Generator().manual_seed(seed))


def seen(model, inputs, labels, *, classes=10, spec=None, **known):
    return testing.observation(
        gradient={k: v.detach() for k, v in model.gradient(inputs, labels).items()},
        model=model,
        spec=spec or ImageSpec(classes=classes, input_shape=SHAPE),
        head="head",
        labels=labels.sort().values,
        num_examples=len(labels),
        **known,
    )


def apart(found, inputs):
    ours = torch.stack([one.flatten() for one in found.inputs]).double()
    return float(torch.cdist(inputs.flatten(1).double(), ours).min(dim=1).values.max())


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


@pytest.mark.parametrize("attack", [FeatureSeparation, ExactBatch])
def test_as_many_equations_as_unknowns_show_no_labels(attack):
    module = perceptron(3, head_bias=False) if attack is FeatureSeparation else nn.Sequential()
    if attack is ExactBatch:
        module.add_module("flat", nn.Flatten())
        module.add_module("head", nn.Linear(36, 3, bias=False))
    observed = seen(victim(module), images(2), torch.tensor([0, 2]), classes=3)
    with pytest.raises(ValueError, match="any labels fit"):
        attack().reconstruct(observed, testing.job())


@pytest.mark.parametrize(
    ("attack", "classes"),
    [(FeatureSeparation, 3), (FeatureSeparation, 10), (ExactBatch, 2), (RGAP, 2), (RGAP, 10)],
)
def test_the_frozen_bias_of_a_head_counts(attack, classes):
    module = perceptron(classes, act=nn.Sigmoid)
    with torch.no_grad():
        module.head.bias.copy_(torch.linspace(1, -1, classes))
    inputs, labels = images(1), torch.tensor([1])
    observed = seen(victim(module, frozen=("head.bias",)), inputs, labels, classes=classes)
    if attack is RGAP:
        found = RGAP().reconstruct(observed, testing.job())
    else:
        found = attack(labels_from="given").reconstruct(observed, testing.job())
    if attack is FeatureSeparation:
        truth = module[:-1](inputs).detach()
        assert torch.allclose(found.features.to(truth), truth, rtol=1e-3, atol=1e-4)
    else:
        assert apart(found, inputs) < 1e-3


@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.ELU])
def test_features_that_dark_images_make_negative_are_not_taken_for_positive(act):
    module = nn.Sequential()
    module.add_module("conv", nn.Conv2d(1, 24, 3, padding=1))
    module.add_module("act", act())
    module.add_module("pool", nn.AdaptiveAvgPool2d(1))
    module.add_module("flat", nn.Flatten())
    module.add_module("head", nn.Linear(24, 10))
    inputs = 0.2 * images(3) * (images(3, seed=1) > 0.8)
    observed = seen(victim(module), inputs, torch.tensor([1, 5, 8]))
    found = FeatureSeparation(labels_from="given").reconstruct(observed, testing.job())
    truth = module[:-1](inputs).detach().double()
    ours = found.features.double()
    assert float((torch.cdist(truth, ours).min(dim=1).values / truth.norm(dim=1)).max()) < 1e-2


@pytest.mark.parametrize(
    "change",
    [{"label_smoothing": 0.1}, {"reduction": "sum"}],
    ids=["smoothed", "sum"],
)
def test_a_loss_that_smooths_or_sums_is_explained(change):
    def loss(module, inputs, target, **_):
        return functional.cross_entropy(module(inputs), target, **change)

    inputs = images(4)
    observed = seen(victim(perceptron(10), loss), inputs, torch.tensor([3, 7, 1, 9]))
    assert apart(ExactBatch().reconstruct(observed, testing.job()), inputs) < 1e-3


def test_an_image_without_a_gradient_in_the_first_layer_is_black():
    black = torch.zeros(1, *SHAPE)
    observed = seen(victim(perceptron(10, act=nn.LeakyReLU)), black, torch.tensor([3]))
    assert apart(RGAP().reconstruct(observed, testing.job()), black) < 1e-6


@pytest.mark.parametrize("label", [0, 1])
def test_features_of_a_head_of_one_logit_are_known(label):
    def loss(module, inputs, target, **_):
        wanted = target.to(inputs)[:, None] if target.ndim == 1 else target[:, 1:]
        return functional.binary_cross_entropy_with_logits(module(inputs), wanted)

    spec = TabularSpec(classes=2, columns=tuple(Column(f"c{at}") for at in range(12)))
    row = torch.randn(1, 12)
    model = victim(perceptron(1, hidden=40, act=nn.Sigmoid, pixels=12), loss)
    observed = seen(model, row, torch.tensor([label]), spec=spec)
    attack = DLG(features_from="feature-separation", iterations=8)
    assert apart(attack.reconstruct(observed, testing.job()), row) < 1e-4


def test_a_frozen_head_shows_spear_no_labels():
    model = victim(perceptron(10), frozen=("head.weight", "head.bias"))
    observed = seen(model, images(4), torch.tensor([3, 7, 1, 9]))
    with pytest.raises(ValueError, match=r"no gradient of 'head\.weight' is sent"):
        SPEAR().reconstruct(observed, testing.job())


WEIGHTS = torch.tensor([1.0, 5, 0.2, 3, 1, 0.5, 2, 0.1, 4, 0.3])


def weighted(module, inputs, target, **_):
    return functional.cross_entropy(module(inputs), target, weight=WEIGHTS)


def test_weights_of_classes_are_warned_of_where_gradients_are_matched():
    spec = ImageSpec(classes=10, input_shape=SHAPE)
    (said,) = DLG().cautions(victim(perceptron(10, act=nn.Sigmoid), weighted, spec=spec))
    assert "the loss has class weights" in said
    assert DLG().cautions(victim(perceptron(10, act=nn.Sigmoid), spec=spec)) == []


def test_layers_of_several_dtypes_are_attacked_without_a_warning():
    spec = ImageSpec(classes=10, input_shape=SHAPE)
    model = victim(perceptron(10, act=nn.Sigmoid), spec=spec)
    first = next(part for part in model.module.modules() if isinstance(part, nn.Linear)).double()
    first.register_forward_pre_hook(lambda part, given: (given[0].to(part.weight.dtype),))
    first.register_forward_hook(lambda _, __, given: given.float())
    assert DLG().cautions(model) == []


def test_a_loss_that_does_not_compute_in_float64_is_named():
    model = victim(perceptron(10, act=nn.LeakyReLU), weighted)
    observed = seen(model, images(1), torch.tensor([3]))
    with pytest.raises(ValueError, match=r"checks itself in torch\.float64"):
        RGAP().reconstruct(observed, testing.job())


def test_a_gradient_of_another_shape_than_its_parameter_is_refused():
    observed = testing.example()
    name = "head.weight"
    gradient = {**observed.gradient, name: observed.gradient[name][:, :-1]}
    with pytest.raises(ValueError, match=r"'head\.weight' has shape \(10, 26\)"):
        DLG().reconstruct(dataclasses.replace(observed, gradient=gradient), testing.job())
