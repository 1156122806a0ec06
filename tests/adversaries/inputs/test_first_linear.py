"""first-linear gives back what it should, exactly, and says when it cannot."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adversaries import FirstLinear
from fedsim import testing
from fedsim.gradients import to_gradient
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Spec, Truth, Update
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

SPEC = Spec(classes=10, input_shape=(1, 8, 8), input_range=(0.0, 1.0))


def digits(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Real handwritten digits (count, 1, 8, 8) in [0, 1], and their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    chosen = torch.randperm(1797, generator=torch.Generator().manual_seed(seed))[:count]
    images = torch.tensor(data.images / 16, dtype=torch.float32)[:, None]
    return images[chosen], torch.tensor(data.target)[chosen]


def perceptron(seed: int = 0, **settings: Any) -> VictimModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = as_architecture({"name": "mlp", **settings}).build((1, 8, 8), 10)
    return VictimModel(module, head="head", loss=cross_entropy)


def seen_of(gradient: dict[str, Tensor], count: int | None, spec: Spec = SPEC) -> Observation:
    return testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=spec,
        num_examples=count,
    )


def attacked(seen: Observation, **settings: Any) -> Reconstruction:
    return FirstLinear(**settings).reconstruct(seen, testing.job())


def recovered(claimed: Reconstruction, images: Tensor) -> float:
    return METRICS["recovered"].score(claimed, Truth(inputs=list(images)), SPEC)


def trained(model: VictimModel, batches: list[tuple[Tensor, Tensor]], lr: float) -> Update:
    """The weights after a real local step a batch."""
    optimizer = torch.optim.SGD(model.module.parameters(), lr=lr)
    for inputs, labels in batches:
        optimizer.zero_grad()
        model.loss(inputs, labels).backward()
        optimizer.step()
    after = {name: p.detach().clone() for name, p in model.parameters().items()}
    count = sum(len(labels) for _, labels in batches)
    return Update(after, "weights", lr=lr, steps=len(batches), num_examples=count)


@pytest.mark.parametrize("activation", ["relu", "sigmoid"])
@pytest.mark.parametrize("seed", range(5))
def test_one_example_comes_back_exactly_without_a_model(activation, seed):
    images, labels = digits(1, seed)
    model = perceptron(seed, activation=activation)
    seen = seen_of(model.gradient(images, labels), 1)
    assert seen.granted == Knowledge.GRADIENT | Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    claimed = attacked(seen)
    assert claimed.inputs[0].shape == (1, 8, 8)
    assert claimed.inputs[0].dtype == torch.float32
    assert float((claimed.inputs[0] - images[0]).abs().max()) < 1e-5
    assert claimed.diagnostics["layer"] == "hidden.0"


def test_rows_of_a_hand_made_batch_are_told_apart():
    # Units 0-2 fire for a alone, 3-4 for b alone, 5 for both, 6 for neither.
    a, b = torch.tensor([0.1, 0.9, 0.4]), torch.tensor([0.7, 0.2, 0.0])
    share = torch.tensor(
        [[1.0, 0], [-2, 0], [0.5, 0], [0, 1], [0, 3], [0.4, 0.6], [0, 0]], dtype=torch.float32
    )
    gradient = {"in.weight": share @ torch.stack([a, b]), "in.bias": share.sum(dim=1)}
    claimed = attacked(seen_of(gradient, 2, Spec(2, (3,), (0.0, 1.0))))
    assert torch.allclose(torch.stack(list(claimed.inputs)), torch.stack([a, b]), atol=1e-6)
    assert claimed.diagnostics["units"] == [3, 2]
    assert claimed.diagnostics["units_within_range"] == 6


def test_units_of_sparse_inputs_agree_without_a_known_range():
    a, b = torch.zeros(8), torch.zeros(8)
    a[1], b[6] = 0.1, 0.7
    share = torch.tensor([[0.3, 0], [-0.7, 0], [0.9, 0], [0, 1.1], [0, 3.3], [0.4, 0.6]])
    gradient = {"in.weight": share @ torch.stack([a, b]), "in.bias": share.sum(dim=1)}
    claimed = attacked(seen_of(gradient, 2, Spec(2, (8,))))
    assert claimed.diagnostics["units"] == [3, 2]
    assert torch.allclose(torch.stack(list(claimed.inputs)), torch.stack([a, b]), atol=1e-6)


def test_of_single_units_the_purest_mixtures_come_first():
    # No two units agree; the last two are a and b, the others lie between.
    a, b = torch.tensor([0.1, 0.9, 0.4]), torch.tensor([0.7, 0.2, 0.0])
    share = torch.tensor([[1.0, 1], [1, 3], [2, 1], [0, 2], [1, 0]])
    gradient = {"in.weight": share @ torch.stack([a, b]), "in.bias": share.sum(dim=1)}
    claimed = attacked(seen_of(gradient, 2, Spec(2, (3,), (0.0, 1.0))))
    assert torch.allclose(torch.stack(list(claimed.inputs)), torch.stack([a, b]), atol=1e-6)
    assert claimed.diagnostics["units"] == [1, 1]


def test_most_of_a_batch_of_eight_comes_back_behind_a_relu():
    found = []
    for seed in range(6):
        images, labels = digits(8, seed)
        claimed = attacked(seen_of(perceptron(seed, hidden=[512]).gradient(images, labels), 8))
        assert len(claimed.inputs) <= 8
        found.append(recovered(claimed, images))
        for one, units in zip(claimed.inputs, claimed.diagnostics["units"], strict=True):
            nearest = (images - one).square().mean(dim=(1, 2, 3)).min()
            assert units == 1 or nearest < 1e-6, "units that agree speak of one example"
    assert sum(found) / len(found) > 0.75


def test_several_local_steps_are_a_mixture_like_any_other():
    images, labels = digits(4, 3)
    model = perceptron(3)
    before = {name: p.detach().clone() for name, p in model.parameters().items()}
    update = trained(model, list(zip(images.split(1), labels.split(1), strict=True)), lr=0.1)
    for known in ({"lr": 0.1, "steps": 4}, {}):
        gradient, exact = to_gradient(update, before, **known)
        assert not exact
        assert recovered(attacked(seen_of(gradient, 4)), images) == 1


def test_an_update_with_noise_is_read_from_all_units():
    images, labels = digits(1, 2)
    gradient = perceptron(2).gradient(images, labels)
    rng = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 0.02 * value.abs().max() * torch.randn(value.shape, generator=rng)
        for name, value in gradient.items()
    }
    claimed = attacked(seen_of(noisy, 1))
    unit = int(noisy["hidden.0.bias"].abs().argmax())
    alone = noisy["hidden.0.weight"][unit] / noisy["hidden.0.bias"][unit]
    error = float((claimed.inputs[0] - images[0]).square().mean())
    assert error < 0.5 * float((alone - images[0].flatten()).square().mean())
    assert error < 1e-3


@pytest.mark.parametrize("count", [1, 3])
def test_without_the_number_of_examples_the_rank_tells(count):
    images, labels = digits(count, 1)
    claimed = attacked(seen_of(perceptron(1, hidden=[512]).gradient(images, labels), None))
    assert claimed.diagnostics["examples"] == count
    assert recovered(claimed, images) == 1


def test_where_no_unit_lies_within_the_range_the_nearest_is_claimed():
    gradient = {"in.weight": torch.tensor([[3.0, 1.0], [-9.0, 0.5]]), "in.bias": torch.ones(2)}
    claimed = attacked(seen_of(gradient, 2, Spec(2, (2,), (0.0, 1.0))))
    assert torch.allclose(claimed.inputs[0], torch.tensor([3.0, 1.0]))
    assert claimed.diagnostics["units_within_range"] == 0


def test_the_layer_may_be_named_and_the_shape_unknown():
    images, labels = digits(1)
    gradient = perceptron(hidden=[64]).gradient(images, labels)
    claimed = attacked(seen_of(gradient, 1, Spec(10)), layer="hidden.0")
    assert torch.allclose(claimed.inputs[0], images.flatten(), atol=1e-5)


def convolutional() -> Observation:
    return dataclasses.replace(testing.example(), labels=None)


def two_that_fit() -> Observation:
    images, labels = digits(1)
    return seen_of(perceptron(hidden=[64]).gradient(images, labels), 1)


def biased(value: float) -> Observation:
    images, labels = digits(1)
    gradient = perceptron().gradient(images, labels)
    return seen_of({**gradient, "hidden.0.bias": torch.full((256,), value)}, 1)


@pytest.mark.parametrize(
    ("seen", "settings", "message"),
    [
        (convolutional(), {}, r"no fully connected layer fits.*36 values.*head \(27 inputs\)"),
        (two_that_fit(), {}, r"several layers fit.*head \(64 inputs\), hidden.0"),
        (two_that_fit(), {"layer": "hiden"}, r"no fully connected layer fits layer = 'hiden'"),
        (biased(1.0), {"layer": "head"}, "does not take the input itself"),
        (biased(0.0), {}, "zero throughout"),
        (biased(float("nan")), {}, "NaN"),
    ],
)
def test_refuses_what_gives_no_input(seen, settings, message):
    with pytest.raises(ValueError, match=message):
        attacked(seen, **settings)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_model_that_normalises_its_inputs_is_warned_of(scale):
    class Scaled(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs.flatten(1) * scale)

    module = Scaled(nn.Linear(36, 8), nn.Sigmoid(), nn.Linear(8, 10))
    spec = testing.example().spec
    cautions = FirstLinear().cautions(VictimModel(module, head="2", loss=cross_entropy, spec=spec))
    said = "layer '0' does not receive the examples themselves"
    assert [said in one for one in cautions] == [True] * (scale != 1)


def test_a_layer_without_a_bias_is_refused():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 9, bias=False), nn.ReLU(), nn.Linear(9, 10))
    model = VictimModel(module, head="3", loss=cross_entropy)
    seen = seen_of(model.gradient(*digits(1)), 1)
    with pytest.raises(ValueError, match="layer '1' has no bias"):
        attacked(dataclasses.replace(seen, head="3"))


def test_a_bias_that_batch_normalisation_takes_away_is_refused():
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    module = nn.Sequential(*layers)
    cross_entropy(module, *digits(4)).backward()
    gradient = {name: one.grad for name, one in module.named_parameters()}
    with pytest.raises(ValueError, match="nothing but rounding: batch normalisation"):
        FirstLinear().reconstruct(seen_of(gradient, 4), testing.job())
