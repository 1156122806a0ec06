"""feature-separation gives the features of a whole batch, and refuses where its equations fail."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from adversaries import FeatureSeparation
from fedsim import testing
from fedsim.diagnosis.measuring import seen_in_model
from fedsim.diagnosis.verdict import expect
from fedsim.gradients import head_calls
from fedsim.knowledge import PRESETS
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.spec import ImageSpec, SpeechSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

SPEC = ImageSpec(20, (1, 8, 8))


def network(seed: int = 0, *, bias: bool = True, classes: int = 20) -> VictimModel:
    """A convolution with BatchNorm in training mode, ReLU and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = nn.Sequential()
        module.add_module("conv", nn.Conv2d(1, 4, 3, stride=2, padding=1))
        module.add_module("norm", nn.BatchNorm2d(4))
        module.add_module("relu", nn.ReLU())
        module.add_module("flatten", nn.Flatten())
        module.add_module("head", nn.Linear(64, classes, bias=bias))
    return VictimModel(module.train(), head="head", loss=cross_entropy)


def wide_perceptron(activation: type[nn.Module] = nn.ReLU, *, bias: bool = True) -> VictimModel:
    """A hidden layer and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential()
        module.add_module("flatten", nn.Flatten())
        module.add_module("hidden", nn.Linear(64, 128))
        module.add_module("activation", activation())
        module.add_module("head", nn.Linear(128, 20, bias=bias))
    return VictimModel(module, head="head", loss=cross_entropy, spec=SPEC)


def observed(
    labels: list[int], model: VictimModel | None = None, seed: int = 0
) -> tuple[Observation, Truth]:
    """The gradient of random images with these labels, and the truth with its features."""
    model = model or network(seed)
    rng = torch.Generator().manual_seed(seed)
    images = torch.rand(len(labels), *SPEC.input_shape, generator=rng)
    target = torch.tensor(labels)
    with head_calls(model) as calls:
        gradient = model.gradient(images, target)
    seen = testing.observation(
        gradient={name: value.detach() for name, value in gradient.items()},
        spec=dataclasses.replace(SPEC, classes=model.module.head.out_features),
        model=model,
        num_examples=len(labels),
        labels=target.sort().values,
    )
    return seen, Truth(inputs=list(images), labels=target, features=calls[0][0].detach())


def attacked(seen: Observation, labels_from: str = "given", **settings: float) -> Reconstruction:
    attack = FeatureSeparation(labels_from=labels_from, **settings)
    return attack.reconstruct(seen, testing.job())


def score(metric: str, claimed: Reconstruction, truth: Truth) -> float:
    return METRICS[metric].score(claimed, truth, SPEC)


def changed(seen: Observation, name: str, value: Tensor) -> Observation:
    return dataclasses.replace(seen, gradient={**seen.gradient, name: value})


@pytest.mark.parametrize(
    "labels",
    [[3, 7, 1, 12], [3, 3, 1, 12, 12, 5], [4, 4, 4, 9, 0, 17, 2, 11]],
    ids=["distinct", "repeated", "thrice"],
)
@pytest.mark.parametrize("labels_from", ["given", "llg"])
def test_features_of_all_examples_behind_batch_normalisation(labels, labels_from):
    seen, truth = observed(labels)
    claimed = attacked(seen, labels_from)
    assert score("features_recovered", claimed, truth) == 1
    assert score("feature_error", claimed, truth) < 1e-4
    assert score("label_exact", claimed, truth) == 1
    assert claimed.diagnostics["residual"] < 1e-5
    assert claimed.diagnostics["rank"] == len(labels)


def test_each_feature_vector_stands_beside_its_label():
    seen, truth = observed([3, 7, 1, 12, 5])
    claimed = attacked(seen)
    ours = {int(k): one for k, one in zip(claimed.labels, claimed.features, strict=True)}
    for label, true in zip(truth.labels.tolist(), truth.features, strict=True):
        torch.testing.assert_close(ours[label], true, rtol=1e-4, atol=1e-5)


def test_features_behind_a_relu_are_separated_in_few_steps():
    labels = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6]
    seen, truth = observed(labels, wide_perceptron())
    claimed = attacked(seen, steps=20)
    assert score("features_recovered", claimed, truth) == 1


def test_more_examples_than_are_solved_directly():
    labels = [*range(30), 0, 1]
    seen, truth = observed(labels, network(classes=50))
    assert score("features_recovered", attacked(seen), truth) == 1


def test_a_wrong_label_is_refused_by_its_residual():
    seen, _ = observed([3, 7, 1, 12])
    wrong = dataclasses.replace(seen, labels=torch.tensor([1, 3, 8, 12]))
    with pytest.raises(ValueError, match=r"no features fit.*are missed by 0"):
        attacked(wrong)


def test_labels_that_another_attack_gets_wrong_are_corrected_by_the_bias():
    seen, truth = observed([3, 3, 3, 3, 1, 12, 12, 5], seed=4)
    claimed = attacked(seen, "min-column")  # which names distinct labels
    assert score("label_exact", claimed, truth) == 1


def test_without_a_bias_labels_are_corrected_one_at_a_time():
    seen, truth = observed([3, 3, 1, 12, 7, 5], network(bias=False))
    claimed = attacked(seen, "min-column")
    assert score("label_exact", claimed, truth) == 1
    assert claimed.diagnostics["label_multisets"] > 1


@pytest.mark.parametrize("bias", [True, False])
def test_features_of_the_other_sign_are_an_obstacle_only_without_a_bias(bias):
    model = wide_perceptron(nn.LogSigmoid, bias=bias)  # whose values are negative
    seen, truth = observed([3, 7, 1, 12], model)
    expected = expect(FeatureSeparation(), PRESETS["full"], seen_in_model(model))
    assert expected.reasons == (() if bias else ("signs_without_bias",))
    uncorrected = expect(FeatureSeparation(corrections=0), PRESETS["full"], seen_in_model(model))
    assert uncorrected.reasons == ("opposite_signs",)
    if bias:
        assert score("features_recovered", attacked(seen, "llg"), truth) == 1
    else:
        with pytest.raises(ValueError, match="no features fit"):
            attacked(seen, "llg")


def test_a_head_without_a_bias():
    seen, truth = observed([3, 7, 1, 12], network(bias=False))
    assert score("features_recovered", attacked(seen), truth) == 1


def test_noise_is_refused():
    seen, _ = observed([3, 7, 1, 12])
    weight = seen.gradient["head.weight"]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="no features fit"):
        attacked(changed(seen, "head.weight", weight + 0.1 * weight.std() * noise))


def test_several_local_steps_are_refused():
    model = network()
    seen, _ = observed([3, 7, 1, 12], model)
    with torch.no_grad():
        for name, value in model.parameters().items():
            value -= 2.0 * seen.gradient[name]
    later, _ = observed([2, 5, 9, 14], model, seed=1)
    mean = {name: (seen.gradient[name] + later.gradient[name]) / 2 for name in seen.gradient}
    labels = torch.cat([seen.labels, later.labels])
    both = dataclasses.replace(
        seen, gradient=mean, model=network(), num_examples=8, labels=labels, steps=2
    )
    with pytest.raises(ValueError, match="no features fit"):
        attacked(both)


def test_as_many_examples_as_classes_are_refused():
    seen, _ = observed(list(range(5)), network(classes=5))
    with pytest.raises(
        ValueError, match=r"5 examples and a head of 5 classes.*inverting-gradients"
    ):
        attacked(seen)


def test_an_image_that_occurs_twice_is_refused_by_the_rank():
    model = network()
    images = torch.rand(3, *SPEC.input_shape, generator=torch.Generator().manual_seed(0))
    twice, target = images[[0, 1, 2, 2]], torch.tensor([3, 7, 1, 1])
    gradient = {name: value.detach() for name, value in model.gradient(twice, target).items()}
    seen = testing.observation(
        gradient=gradient, spec=SPEC, model=model, num_examples=4, labels=target
    )
    with pytest.raises(ValueError, match="rank 3, and the update holds 4 examples"):
        attacked(seen)


@pytest.mark.parametrize("name", ["head.weight", "head.bias"])
def test_a_gradient_that_is_not_finite_is_refused(name):
    seen, _ = observed([3, 7, 1, 12])
    spoilt = seen.gradient[name].clone()
    spoilt.view(-1)[0] = math.nan
    with pytest.raises(ValueError, match=f"'{name}' holds NaN or Inf"):
        attacked(changed(seen, name, spoilt))


def test_granted_labels_of_another_number_are_refused():
    seen, _ = observed([3, 7, 1, 12])
    fewer = dataclasses.replace(seen, labels=seen.labels[:3])
    with pytest.raises(ValueError, match=r"3 labels are granted, and .* shows 4 examples"):
        attacked(fewer)


def test_a_head_tied_to_other_weights_is_refused():
    model = network()
    model.module.register_module("twin", nn.Linear(64, 20))
    model.module.twin.weight = model.module.head.weight
    seen, _ = observed([3, 7, 1, 12])
    with pytest.raises(ValueError, match=r"the head's weight is also twin\.weight"):
        attacked(dataclasses.replace(seen, model=model, gradient={}))
    assert any("twin.weight" in one for one in FeatureSeparation().cautions(model))


@pytest.mark.parametrize("labels_from", ["given", "rlg", "llg"])
def test_each_token_of_a_text_is_an_example(labels_from):
    seen, truth = observed([3, 7, 1, 12, 5])
    seen = dataclasses.replace(
        seen,
        num_examples=2,
        labels=torch.tensor([[1, 3, 7], [5, 12, -100]]),
        spec=SpeechSpec(20, features=1, sample_rate=0, pieces=tuple("abcdefghijklmnopqrst")),
    )
    claimed = attacked(seen, labels_from)
    assert score("features_recovered", claimed, truth) == 1
    assert claimed.labels.tolist() == [1, 3, 5, 7, 12]


def test_labels_of_a_large_batch_are_corrected_before_anything_is_solved():
    labels = [*range(24), 0, 0, 3, 5, 5, 5]
    seen, truth = observed(labels, network(classes=50))
    claimed = attacked(seen, "min-column")  # which names distinct labels
    assert score("label_exact", claimed, truth) == 1
    assert claimed.diagnostics["label_multisets"] == 1


def test_a_residual_that_may_hide_mixed_examples_is_refused_above_48_examples():
    seen, _ = observed([*range(49)], network(classes=60))
    weight = seen.gradient["head.weight"]
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=r"49 examples, whose expected error is not computed"):
        attacked(changed(seen, "head.weight", weight + 1e-4 * weight.std() * noise))


def test_a_model_trained_with_ctc_is_refused():
    model = network()
    model.module.blank = 0
    seen, _ = observed([3, 7, 1, 12], model)
    with pytest.raises(ValueError, match="trained with CTC"):
        attacked(seen)
    assert any("CTC" in one for one in FeatureSeparation().cautions(model))
