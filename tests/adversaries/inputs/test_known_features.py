"""dlg and inverting-gradients with known features: what these add to gradients."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from adversaries import DLG, InvertingGradients
from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.known_features.distance import FeatureDistance
from adversaries.inputs.known_features.equations import BatchEquations
from adversaries.inputs.known_features.smoothness import usual_directions
from fedsim import Adversary, Knowledge, testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.models import as_architecture
from fedsim.victim import VictimModel

FEATURES = {"features_from": "feature-separation"}
SHAPE = (1, 8, 8)


def batch(
    size: int, *, module: nn.Module | None = None, shape: tuple[int, ...] = SHAPE
) -> tuple[Observation, Truth]:
    """Images with a label each, random below a smooth pattern, and their gradient at LeNet."""
    rng = torch.Generator().manual_seed(1)
    small = torch.rand(size, shape[0], 4, 4, generator=rng)
    images = nn.functional.interpolate(small, shape[1:], mode="bilinear")
    labels = torch.randperm(10, generator=rng)[:size]
    if module is None:
        torch.manual_seed(0)
        module = as_architecture("lenet-sigmoid").build(shape, 10)
    spec = ImageSpec(10, shape)
    model = VictimModel(module, head="head", loss=cross_entropy, spec=spec)
    gradient = {name: value.detach() for name, value in model.gradient(images, labels).items()}
    seen = testing.observation(
        gradient=gradient, spec=spec, model=model, num_examples=size, steps=1
    )
    return seen, Truth(inputs=list(images), labels=labels)


def error(attack: DLG | InvertingGradients, seen: Observation, truth: Truth) -> float:
    claimed = attack.reconstruct(seen, testing.job(seed=1))
    return float(METRICS["mse"].score(claimed, truth, seen.spec))


@pytest.mark.parametrize("prior", ["smooth", "none"])
def test_four_images_come_back_exactly_by_gauss_newton(prior):
    seen, truth = batch(4)
    claimed = DLG(prior=prior, **FEATURES).reconstruct(seen, testing.job(seed=1))
    assert METRICS["mse"].score(claimed, truth, seen.spec) < 1e-6
    assert claimed.labels.sort().values.equal(truth.labels.sort().values)
    assert claimed.outcomes == ("matched",)
    assert claimed.trace[-1][1] == pytest.approx(claimed.objective)


def test_four_images_do_not_come_back_by_l_bfgs():
    seen, truth = batch(4)
    assert error(DLG(labels_from="llg", iterations=30, restarts=0), seen, truth) > 1e-3


def test_rows_of_tables_come_back_too():
    torch.manual_seed(0)
    module = nn.Sequential()
    module.add_module("hidden", nn.Linear(20, 30))
    module.add_module("tanh", nn.Tanh())
    module.add_module("head", nn.Linear(30, 10))
    rows, labels = torch.randn(3, 20), torch.tensor([4, 0, 7])
    model = VictimModel(module, head="head", loss=cross_entropy)
    gradient = {name: value.detach() for name, value in model.gradient(rows, labels).items()}
    spec = testing.example().spec
    spec = replace(spec, classes=10, input_shape=(20,), input_range=None)
    seen = testing.observation(gradient=gradient, spec=spec, model=model, num_examples=3, steps=1)
    claimed = DLG(**FEATURES).reconstruct(seen, testing.job())
    found = {int(label): row for label, row in zip(claimed.labels, claimed.inputs, strict=True)}
    for row, label in zip(rows, labels.tolist(), strict=True):
        assert torch.allclose(found[label], row, atol=1e-3)


def one_convolution(channels: int, *behind: nn.Module) -> nn.Sequential:
    """A convolution, what stands behind it, and a head of ten classes."""
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, channels, 5, stride=2, padding=2)
    module = nn.Sequential(convolution, *behind, nn.Flatten())
    module.add_module("head", nn.Linear(16 * channels, 10))
    return module


def test_open_directions_stay_grey_and_the_prior_says_which():
    # One convolution of one channel: its 25 weights and 16 features leave most of 64 values open.
    seen, truth = batch(2, module=one_convolution(1, nn.Sigmoid()))
    smooth, grey = (
        error(DLG(prior=prior, **FEATURES), seen, truth) for prior in ("smooth", "none")
    )
    assert smooth < grey / 2
    assert grey > 1e-3


def test_derivatives_are_those_of_the_equations():
    seen, _ = batch(2)
    equations = equations_of(seen)
    rng = torch.Generator().manual_seed(3)
    at = torch.rand(2, *SHAPE, generator=rng).double()
    direction = torch.rand(1, *SHAPE, generator=rng).double()
    own = equations.slopes(1, at[1], direction)[0]
    step, moved = 1e-5, at.clone()
    moved[1] += step * direction[0]
    change = (equations.missed(moved) - equations.missed(at)) / step
    width = equations.features
    assert not change[:width].any()  # the features of the other example
    assert torch.allclose(own, change[width:], rtol=1e-3, atol=1e-3 * float(change.abs().max()))
    assert equations.number == len(change)


def test_the_true_inputs_miss_nothing():
    seen, truth = batch(3)
    known = KnownBatch.found_by(DLG(**FEATURES).parts()["features_from"], seen, testing.job())
    order = [truth.labels.tolist().index(label) for label in known.labels.tolist()]
    inputs = torch.stack([truth.inputs[at] for at in order]).double()
    assert float(equations_of(seen).missed(inputs).abs().max()) < 1e-4


def equations_of(seen: Observation) -> BatchEquations:
    known = KnownBatch.found_by(DLG(**FEATURES).parts()["features_from"], seen, testing.job())
    return BatchEquations(
        seen.model, seen.gradient, dict.fromkeys(seen.gradient, 1.0), known, SHAPE
    )


def test_directions_are_orthogonal_and_long_where_images_vary():
    directions = usual_directions((3, 4, 4), smooth=True).flatten(1)
    gram = directions @ directions.T
    assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-12)
    assert gram.diagonal().argmax() == 0  # the brightness of the whole image
    assert torch.allclose(directions[0], directions[0].mean().expand(48))
    assert usual_directions((3, 4, 4), smooth=False).flatten(1).equal(torch.eye(48).double())


def test_inverting_gradients_come_nearer_with_features():
    seen, truth = batch(4)
    settings: dict[str, Any] = {"iterations": 100, "restarts": 0}
    with_features = error(InvertingGradients(**settings, **FEATURES), seen, truth)
    assert with_features < error(InvertingGradients(**settings), seen, truth) / 2


@pytest.mark.parametrize("at_once", [True, False])
def test_features_are_compared_example_by_example(at_once):
    seen, _ = batch(2)
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    known = KnownBatch(rows, torch.tensor([0, 1]), torch.zeros(2, 10))
    distance = FeatureDistance(seen.model, [known])
    off = torch.stack([rows, rows + torch.tensor([[0.0, 0.0], [0.0, 2.0]])])
    calls = [(off.flatten(0, 1), off)] if at_once else [(one, one) for one in off]
    victims = torch.zeros(2, dtype=torch.int64)
    assert distance(calls, victims).tolist() == [0, 1]  # 4 of a spread of 4


def test_features_need_a_source_that_finds_them():
    seen, _ = batch(2)
    with pytest.raises(ValueError, match="'llg' gives no features"):
        DLG(features_from="llg").reconstruct(seen, testing.job())


def test_features_that_do_not_explain_the_head_are_refused():
    seen, _ = batch(2)
    claimed = DLG(**FEATURES).parts()["features_from"].reconstruct(seen, testing.job())

    class Doubled(Adversary):
        """Features of twice the size."""

        name = "doubled"
        needs = Knowledge.HEAD_GRADIENT
        recovers = frozenset({"features", "labels"})

        def reconstruct(self, seen, job):
            return replace(claimed, features=2 * claimed.features)

    with pytest.raises(ValueError, match="'doubled' miss the head's gradient by"):
        KnownBatch.found_by(Doubled(), seen, testing.job())


def test_bounds_on_examples_do_not_hold_with_features():
    plain, known, grey = DLG(), DLG(**FEATURES), DLG(prior="none", **FEATURES)
    bounds = [
        {one.quantity: one.most for one in attack.conditions()} for attack in (plain, known, grey)
    ]
    assert ["examples" in one for one in bounds] == [True, False, False]
    assert [one["unknowns"] for one in bounds] == [1, 1.6, 1]
    assert "label_share" in bounds[1]  # of feature-separation


def test_other_layers_are_refused_in_a_sentence():
    seen, _ = batch(2, module=one_convolution(4, nn.GroupNorm(2, 4), nn.Sigmoid()))
    with pytest.raises(ValueError, match="other layers than linear ones and convolutions"):
        DLG(**FEATURES).reconstruct(seen, testing.job())


def test_functions_without_a_forward_derivative_are_refused_in_a_sentence():
    seen, _ = batch(2, module=one_convolution(4, nn.Hardsigmoid()))
    with pytest.raises(ValueError, match="no forward derivative of the model's gradient"):
        DLG(**FEATURES).reconstruct(seen, testing.job())


def test_a_head_s_gradient_alone_is_refused():
    seen, _ = batch(2)
    with pytest.raises(ValueError, match="no gradient below the head"):
        DLG(parameters={"head.*": 1.0}, **FEATURES).reconstruct(seen, testing.job())


def test_too_many_unknowns_are_refused_with_their_number(monkeypatch):
    monkeypatch.setattr("adversaries.inputs.known_features.gauss_newton.LARGEST", 100)
    seen, _ = batch(2)
    with pytest.raises(ValueError, match="2 examples of 64 values are 128 unknowns"):
        DLG(**FEATURES).reconstruct(seen, testing.job())


def test_gauss_newton_keeps_to_its_budget():
    seen, _ = batch(2)
    claimed = DLG(**FEATURES).reconstruct(seen, testing.job(budget=1))
    assert claimed.outcomes == ("budget",)
    assert len(claimed.trace) == 1


def test_knowledge_that_the_features_need_is_asked_for():
    given = {"name": "feature-separation", "labels_from": "given"}
    assert Knowledge.LABELS in DLG(features_from=given).requires()
    assert Knowledge.LABELS not in DLG(**FEATURES).requires()
    assert not DLG(features_from="none").parts()
