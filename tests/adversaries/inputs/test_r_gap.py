"""r-gap computes the input of a chain of layers, or says which layer has too few equations."""

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from adversaries import RGAP
from adversaries.inputs.layer_chain import LayerChain
from adversaries.inputs.r_gap import counts
from adversaries.inputs.self_check import in_float64
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SPEC = ImageSpec(10, (2, 12, 12))


def network(*parts: nn.Module, head_bias: bool = True, spec: ImageSpec = SPEC) -> VictimModel:
    """Layers and a head behind them."""
    body = nn.Sequential(*parts, nn.Flatten())
    width = body(torch.zeros(1, *spec.input_shape)).shape[1]
    head = nn.Linear(width, spec.classes, bias=head_bias)
    module = nn.Sequential(OrderedDict(body=body, head=head))
    return VictimModel(module, head="head", loss=cross_entropy, spec=spec)


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def observed(model: VictimModel, size: int = 1, seed: int = 0) -> tuple[Observation, Truth]:
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(size, *model.spec.input_shape, generator=rng)
    labels = torch.randint(model.spec.classes, (size,), generator=rng)
    gradient = {k: v.detach() for k, v in model.gradient(images, labels).items()}
    seen = testing.observation(
        gradient=gradient, spec=model.spec, model=model, num_examples=size, head=model.head
    )
    return seen, Truth(inputs=list(images), labels=labels)


def attacked(seen: Observation, **settings: Any) -> Reconstruction:
    return RGAP(**settings).reconstruct(seen, testing.job())


def recovered(claimed: Reconstruction, truth: Truth, error: float = 1e-6) -> bool:
    right = torch.equal(claimed.labels, truth.labels)
    return right and METRICS["mse"].score(claimed, truth, SPEC) < error


ACTIVATIONS = [nn.Sigmoid, nn.Tanh, nn.ELU, lambda: nn.LeakyReLU(0.2), nn.ReLU]


@pytest.mark.parametrize(
    "activation", ACTIVATIONS, ids=["sigmoid", "tanh", "elu", "leaky_relu", "relu"]
)
def test_the_image_through_strided_convolutions_and_a_fully_connected_layer(activation):
    model = network(
        nn.Conv2d(2, 16, 5, stride=2, padding=2),
        activation(),
        nn.Conv2d(16, 24, 3, padding=1),
        activation(),
        nn.Flatten(),
        nn.Linear(24 * 36, 400),
        activation(),
    )
    seen, truth = observed(model)
    claimed = attacked(seen)
    assert recovered(claimed, truth)
    assert claimed.diagnostics["mismatch"] < 1e-4
    assert claimed.features.shape == (1, 400)


def test_dlgs_network():
    spec = ImageSpec(10, (1, 16, 16))
    module = as_architecture("lenet-sigmoid").build(spec.input_shape, spec.classes)
    seen, truth = observed(VictimModel(module, head="head", loss=cross_entropy, spec=spec))
    assert recovered(attacked(seen), truth)


def test_layers_without_biases():
    model = network(
        nn.Conv2d(2, 12, 3, bias=False), nn.Tanh(), nn.Conv2d(12, 12, 3), nn.Tanh(), head_bias=False
    )
    seen, truth = observed(model)
    assert recovered(attacked(seen), truth)


@pytest.mark.parametrize("seed", range(4))
def test_a_head_of_two_classes_without_a_bias(seed):
    spec = ImageSpec(2, (1, 4, 4))
    model = network(nn.Flatten(), nn.Linear(16, 64), nn.Sigmoid(), head_bias=False, spec=spec)
    seen, truth = observed(model, seed=seed)
    assert recovered(attacked(seen), truth)


def test_groups_dilation_and_padding_to_the_same_size():
    model = network(
        nn.Conv2d(2, 16, 3, padding="same", dilation=2),
        nn.Sigmoid(),
        nn.Conv2d(16, 32, 3, groups=4),
        nn.Sigmoid(),
    )
    seen, truth = observed(model)
    assert recovered(attacked(seen), truth)


def test_a_module_that_defines_its_layers_in_another_order_and_calls_functions():
    class Stranger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(16 * 6 * 6, SPEC.classes)
            self.second = nn.Conv2d(16, 16, 3, padding=1)
            self.first = nn.Conv2d(2, 16, 5, stride=2, padding=2)

        def forward(self, images: Tensor) -> Tensor:
            found = functional.leaky_relu(self.first((images - 0.5) / 0.25), 0.1)
            return self.out(torch.tanh(self.second(found)).reshape(len(found), -1))

    model = VictimModel(Stranger(), head="out", loss=cross_entropy, spec=SPEC)
    seen, truth = observed(model)
    assert recovered(attacked(seen), truth)


def two_convolutions() -> VictimModel:
    first, second = nn.Conv2d(2, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3)
    return network(first, nn.Sigmoid(), second, nn.Sigmoid())


def test_victims_attacked_together_are_claimed_as_alone():
    model = two_convolutions()
    seen, truths = zip(*(observed(model, seed=seed) for seed in range(3)), strict=True)
    jobs = [testing.job(seed=seed) for seed in range(3)]
    together = RGAP().reconstruct_many(seen, jobs)
    for one, view, truth in zip(together, seen, truths, strict=True):
        assert recovered(one, truth)
        torch.testing.assert_close(one.inputs[0], attacked(view).inputs[0], rtol=0, atol=1e-4)


def test_noise_far_below_the_gradient_is_allowed():
    model = two_convolutions()
    seen, truth = observed(model)
    rng = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 1e-5 * value.square().mean().sqrt() * torch.randn(value.shape, generator=rng)
        for name, value in seen.gradient.items()
    }
    assert recovered(attacked(dataclasses.replace(seen, gradient=noisy)), truth, 1e-3)


def test_the_rank_analysis_counts_unknowns_and_equations():
    model = network(nn.Conv2d(2, 8, 5, stride=2, padding=2), nn.Sigmoid())
    chain = LayerChain.of(in_float64(model), SPEC.input_shape, (nn.Linear, nn.Conv2d))
    [one], [three] = counts(chain), counts(chain, examples=3)
    # Every second pixel is seen by 9, 6, 6 and 4 of the kernel's 25 places.
    assert one.unknowns == 2 * 144
    assert one.outputs == 8 * 36
    assert one.gradient == 2 * (36 + 36 + 36 + 32)
    assert (three.unknowns, three.outputs) == (3 * one.unknowns, 3 * one.outputs)
    assert three.gradient == 2 * 8 * (9 + 6 + 6 + 4)
    assert not one.short


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (
            (nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.Sigmoid()),
            r"'body.0' has 288 unknown inputs, and at most 216 equations \(144 of its outputs, 72",
        ),
        ((nn.Conv2d(2, 30, 1, stride=2), nn.Sigmoid()), "does not see 216 of its 288 inputs"),
        (
            (nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU()),
            "between the layers 'body.0' and 'body.3' leaves 200 of 800 values",
        ),
        ((nn.Conv2d(2, 8, 3), nn.GELU()), "between the layers 'body.0' and 'head' is none of relu"),
        ((nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), "'body.1.bias' is no fully connected"),
        (
            (nn.BatchNorm2d(2, affine=False), nn.Conv2d(2, 8, 3), nn.Tanh()),
            "what reaches the layer 'body.1' depends on the rest of the batch",
        ),
        ((nn.Conv2d(2, 8, 3, padding=1, padding_mode="circular"), nn.Tanh()), "circular"),
        ((nn.Flatten(), nn.Dropout(0.5), nn.Linear(288, 300), nn.Tanh()), "drops units at random"),
    ],
    ids=["equations", "unseen", "pooling", "gelu", "batch-norm", "batch", "padding", "dropout"],
)
def test_other_networks_are_refused_and_warned_of(parts, why):
    model = network(*parts)
    seen, _ = observed(model)
    with pytest.raises(ValueError, match=why):
        attacked(seen)
    assert RGAP().cautions(model)


def test_relus_that_do_not_fire_can_leave_too_few_equations():
    model = network(nn.Conv2d(2, 8, 3, stride=2, padding=1), nn.ReLU())
    assert not RGAP().cautions(model)
    with pytest.raises(ValueError, match=r"equations .* of its 288 units fire"):
        attacked(observed(model)[0])


def test_equations_that_repeat_each_other_claim_nothing():
    model = network(nn.Conv2d(2, 24, 3, stride=2, padding=1), nn.Sigmoid())
    weight = model.module.body[0].weight
    weight.data[:, 1] = weight.data[:, 0]  # only the channels' sum reaches the outputs
    assert not RGAP().cautions(model)
    with pytest.raises(ValueError, match="the input that fits is not the only one"):
        attacked(observed(model)[0])


def test_several_examples_are_refused_with_what_to_use():
    model = network(nn.Conv2d(2, 16, 3), nn.Sigmoid())
    seen, _ = observed(model, size=3)
    with pytest.raises(ValueError, match=r"holds 3 examples.*exact-batch"):
        attacked(seen)
    with pytest.raises(ValueError, match="holds 3 examples"):
        attacked(dataclasses.replace(seen, num_examples=None))


def test_without_a_batch_size_noise_is_not_counted_as_examples():
    seen, _ = observed(network(nn.Conv2d(2, 16, 3), nn.Sigmoid()))
    noise = {name: torch.randn(value.shape) for name, value in seen.gradient.items()}
    with pytest.raises(ValueError, match=r"shows no example.*noise"):
        attacked(dataclasses.replace(seen, gradient=noise, num_examples=None))


def test_a_gradient_of_another_image_below_the_head_is_refused():
    model = network(nn.Conv2d(2, 16, 3), nn.Sigmoid())
    seen, other = observed(model)[0], observed(model, seed=1)[0]
    mixed = {**seen.gradient, "body.0.weight": other.gradient["body.0.weight"]}
    with pytest.raises(ValueError, match="no input fits"):
        attacked(dataclasses.replace(seen, gradient=mixed))


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("body.0.weight", None, r"no gradient of 'body\.0\.weight' was sent"),
        ("body.0.weight", float("nan"), r"'body\.0\.weight' holds NaN"),
        ("head.bias", 0.0, "is zero"),
    ],
)
def test_a_gradient_that_says_nothing_is_refused(name, value, why):
    seen, _ = observed(network(nn.Conv2d(2, 16, 3), nn.Sigmoid()))
    gradient = dict(seen.gradient)
    sent = gradient.pop(name)
    if value is not None:
        gradient[name] = torch.full_like(sent, value)
    with pytest.raises(ValueError, match=why):
        attacked(dataclasses.replace(seen, gradient=gradient))


def test_the_expected_error_is_that_of_an_attack_alone():
    model = network(nn.Conv2d(2, 16, 3, padding=1), nn.LeakyReLU(0.2))
    every = [observed(model, seed=seed)[0] for seed in range(2)]
    alone = [RGAP().reconstruct(one, testing.job(seed=at)) for at, one in enumerate(every)]
    both = RGAP().reconstruct_many(every, [testing.job(seed=at) for at in range(2)])
    assert [one.diagnostics for one in both] == [
        {name: pytest.approx(value, rel=1e-3) for name, value in one.diagnostics.items()}
        for one in alone
    ]
