"""spear gives every input of a batch with more examples than classes, or says why not."""

import dataclasses
from collections import OrderedDict
from typing import Any

import pytest
import torch
from support.perceptrons import Normalised
from torch import Tensor, nn

from adversaries import SPEAR
from adversaries.inputs.self_check import largest_error
from adversaries.inputs.spear import directions
from adversaries.inputs.spear.half_space import input_that_fires
from adversaries.inputs.spear.low_rank import LowRank
from adversaries.inputs.spear.robust_regression import explain
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Observation, Reconstruction, Truth
from fedsim.spec import Column, ImageSpec, TabularSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel

SPEC = ImageSpec(3, (1, 6, 6))


def network(
    *layers: nn.Module, inputs: int = 36, classes: int = 3, head: int = 96, bias: bool = True
) -> VictimModel:
    """A fully connected layer, what stands behind it, and a head."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            OrderedDict(
                flatten=nn.Flatten(),
                first=nn.Linear(inputs, 96, bias=bias),
                behind=nn.Sequential(*layers),
                head=nn.Linear(head, classes),
            )
        )
    return VictimModel(module, head="head", loss=cross_entropy)


def observed(
    model: VictimModel, size: int = 12, spec: Any = SPEC, seed: int = 0, known: bool = True
) -> tuple[Observation, Truth]:
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.rand(size, *spec.input_shape, generator=rng)
    labels = torch.randint(spec.classes, (size,), generator=rng)
    seen = testing.observation(
        gradient={k: v.detach() for k, v in model.gradient(inputs, labels).items()},
        spec=spec,
        model=model,
        num_examples=size if known else None,
        head=model.head,
    )
    return seen, Truth(inputs=list(inputs), labels=labels)


def attacked(seen: Observation, **settings: Any) -> Reconstruction:
    return SPEAR(**settings).reconstruct(seen, testing.job())


def recovered(claimed: Reconstruction, truth: Truth, spec: Any = SPEC) -> bool:
    right = METRICS["label_exact"].score(claimed, truth, spec) == 1
    return right and METRICS["mse"].score(claimed, truth, spec) < 1e-8


@pytest.mark.parametrize("deeper", [0, 1, 2])
def test_every_image_and_label_of_a_batch_four_times_the_number_of_classes(deeper):
    parts = [part for _ in range(deeper) for part in (nn.Linear(96, 96), nn.ReLU())]
    seen, truth = observed(network(nn.ReLU(), *parts))
    claimed = attacked(seen)
    assert recovered(claimed, truth)
    assert claimed.diagnostics["rank"] == 12
    assert claimed.diagnostics["mismatch"] < 1e-4
    assert claimed.diagnostics["agreement"] > 0.99


@pytest.mark.parametrize("search", ["sampling", "dictionary"])
def test_the_searches_of_the_papers(search):
    seen, truth = observed(network(nn.ReLU(), nn.Linear(96, 96), nn.ReLU()), size=6)
    claimed = attacked(seen, search=search)
    assert recovered(claimed, truth)
    assert claimed.diagnostics["searches"] > 0


def test_the_batch_size_is_the_rank_if_it_is_not_granted():
    seen, truth = observed(network(nn.ReLU()), known=False)
    assert recovered(attacked(seen), truth)


def test_a_single_image():
    seen, truth = observed(network(nn.ReLU()), size=1)
    assert recovered(attacked(seen), truth)


def test_rows_of_a_binary_table():
    spec = TabularSpec(classes=2, columns=tuple(Column(f"c{i}") for i in range(14)))
    seen, truth = observed(network(nn.ReLU(), inputs=14, classes=2), 6, spec)
    assert METRICS["row_exact"].score(attacked(seen), truth, spec) == 1


def test_other_activations_may_follow_deeper_in_the_model():
    seen, truth = observed(network(nn.ReLU(), nn.Linear(96, 96), nn.SiLU()))
    assert recovered(attacked(seen), truth)


def test_a_model_that_normalises_its_inputs():
    module = Normalised(network(nn.ReLU()).module)
    seen, truth = observed(VictimModel(module, head="inner.head", loss=cross_entropy))
    assert recovered(attacked(seen), truth)


def test_rounding_to_sixteen_bits_is_noise_that_it_stands():
    seen, truth = observed(network(nn.ReLU()), size=4)
    half = {name: value.half().float() for name, value in seen.gradient.items()}
    claimed = attacked(dataclasses.replace(seen, gradient=half))
    assert METRICS["mse"].score(claimed, truth, SPEC) < 1e-4


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (network(nn.LeakyReLU(0.1)), r"behind 'first' stands leaky_relu: only ReLU"),
        (network(nn.Sigmoid()), r"behind 'first' stands sigmoid: only ReLU"),
        (network(nn.LayerNorm(96), nn.ReLU()), r"behind 'first' stands layer normalisation"),
        (network(nn.ReLU(), bias=False), r"'first' has no bias.*up to a factor"),
        (network(nn.ReLU(), nn.Dropout(0.5)), r"drops units at random"),
        (testing.network(), r"'conv.bias' is no fully connected layer"),
    ],
    ids=["leaky_relu", "sigmoid", "layer_norm", "no_bias", "dropout", "convolution"],
)
def test_other_networks_are_refused_and_warned_of(model, why):
    spec = dataclasses.replace(SPEC, classes=model.module.head.out_features)
    model.spec = spec
    seen, _ = observed(model, 3, spec)
    with pytest.raises(ValueError, match=why):
        attacked(seen)
    assert any(why.partition("'")[0] in one for one in SPEAR().cautions(model))


def test_a_model_that_is_its_head_alone_is_refused():
    module = nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(36, 3)))
    seen, _ = observed(VictimModel(module, head="head", loss=cross_entropy), 2)
    with pytest.raises(ValueError, match=r"'head' is the only layer.*exact-batch"):
        attacked(seen)


def test_as_many_examples_as_inputs_are_refused():
    seen, _ = observed(network(nn.ReLU()), size=36)
    with pytest.raises(ValueError, match=r"36 examples, and 'first' has 96 units and 36 inputs"):
        attacked(seen)


def test_repeated_images_are_refused():
    model = network(nn.ReLU())
    images = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(1))[[0, 1, 2, 2]]
    seen, _ = observed(model, 4)
    gradient = {
        k: v.detach() for k, v in model.gradient(images, torch.tensor([0, 1, 2, 2])).items()
    }
    with pytest.raises(
        ValueError, match=r"has rank 3, and the update holds 4 examples: .*repeated"
    ):
        attacked(dataclasses.replace(seen, gradient=gradient))


def test_a_gradient_that_is_not_finite_is_refused():
    seen, _ = observed(network(nn.ReLU()))
    spoilt = {**seen.gradient, "first.weight": seen.gradient["first.weight"] / 0}
    with pytest.raises(ValueError, match="'first' holds NaN or Inf"):
        attacked(dataclasses.replace(seen, gradient=spoilt))


@pytest.mark.parametrize("part", ["weight", "bias"])
def test_a_gradient_that_was_not_sent_is_refused(part):
    seen, _ = observed(network(nn.ReLU()))
    sent = {k: v for k, v in seen.gradient.items() if k != f"first.{part}"}
    with pytest.raises(ValueError, match=rf"no gradient of 'first\.{part}' was sent"):
        attacked(dataclasses.replace(seen, gradient=sent))


def test_examples_that_do_not_explain_the_other_layers_are_not_claimed():
    model = network(nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
    seen, _ = observed(model, size=6)
    assert len(attacked(seen).inputs) == 6
    other, _ = observed(model, size=6, seed=1)
    mixed = {**seen.gradient, "behind.1.weight": other.gradient["behind.1.weight"]}
    with pytest.raises(ValueError, match=r"no batch fits: the best one misses a layer's gradient"):
        attacked(dataclasses.replace(seen, gradient=mixed))


def test_noise_that_fills_the_zeros_is_refused():
    seen, _ = observed(network(nn.ReLU()), size=4)
    rng = torch.Generator().manual_seed(0)
    noisy = {
        name: value + 0.1 * value.std() * torch.randn(value.shape, generator=rng)
        for name, value in seen.gradient.items()
    }
    with pytest.raises(ValueError, match=r"no batch fits: 0 of 4"):
        attacked(dataclasses.replace(seen, gradient=noisy), searches=2)


def layer(size: int = 5) -> tuple[LowRank, Tensor, Tensor]:
    """A layer's gradient, with the directions and coordinates of its examples in its rows."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randn(60, 20, generator=rng, dtype=torch.float64)
    bias = torch.randn(60, generator=rng, dtype=torch.float64)
    inputs = torch.rand(size, 20, generator=rng, dtype=torch.float64)
    fires = inputs @ weight.T + bias > 0
    errors = fires * torch.randn(size, 60, generator=rng, dtype=torch.float64)
    gradient = torch.cat([errors.T @ inputs, errors.sum(dim=0)[:, None]], dim=1)
    found = LowRank.of(gradient, weight, bias, size)
    q = directions.unit(errors @ found.left)
    return found, q, torch.linalg.lstsq(found.right.T, inputs.T).solution.T


def test_directions_and_coordinates_of_the_examples_belong_together():
    found, q, a = layer()
    torch.testing.assert_close(found.outputs(a) > 0, found.fires(q))
    torch.testing.assert_close(a @ found.sums, torch.ones(5, dtype=torch.float64))


def test_an_input_exists_for_an_example_and_for_no_mixture():
    found, q, _ = layer()
    none = q[:0]
    assert input_that_fires(found, found.fires(q[:1])[0], none)[1] == 1
    assert input_that_fires(found, found.fires(directions.unit(q[:1] + q[1:2]))[0], none)[1] < 0.99


def test_sampled_directions_vanish_at_the_rows_chosen():
    found, _, _ = layer()
    ours = directions.sampled(found.left, 50, torch.Generator().manual_seed(0))
    assert ((ours @ found.left.T).abs() < 1e-9).sum(dim=1).min() >= 4


def test_reweighted_least_squares_end_at_an_example_from_close_to_it():
    found, q, _ = layer()
    near = q + 0.02 * torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
    ours = directions.reweighted(found.left, directions.unit(near), 0.1)
    torch.testing.assert_close((ours * q).sum(dim=1).abs(), torch.ones(5, dtype=torch.float64))


def test_regression_explains_what_most_of_its_likely_rows_agree_on():
    rng = torch.Generator().manual_seed(0)
    known = torch.randn(40, 3, generator=rng, dtype=torch.float64)
    truth = torch.randn(3, 6, generator=rng, dtype=torch.float64)
    rows = known @ truth
    rows[25:] += torch.randn(15, 6, generator=rng, dtype=torch.float64)
    known[:, 2] *= torch.arange(40) == 7  # an unknown that a single row has
    rows[:25] = known[:25] @ truth
    prior = torch.linspace(1, 0.01, 40, dtype=torch.float64)
    found, agreed = explain(known, rows, rows.norm(dim=1), None, prior)
    torch.testing.assert_close(found[:2], truth[:2])
    assert agreed.tolist() == [True, True, False]


def test_regression_on_rows_without_the_unknown_determines_nothing():
    rows = torch.ones(5, 2, dtype=torch.float64)
    found, agreed = explain(torch.zeros_like(rows[:, :1]), rows, rows.norm(dim=1), None, None)
    assert found.isfinite().all()
    assert agreed.tolist() == [False]


def test_a_batch_that_is_refused_again_and_again_ends():
    seen, _ = observed(network(nn.ReLU()), size=20, seed=1)
    rng = torch.Generator().manual_seed(1)
    noisy = {
        name: value + 1e-4 * value.abs().mean() * torch.randn(value.shape, generator=rng)
        for name, value in seen.gradient.items()
    }
    seen = dataclasses.replace(seen, gradient=noisy)
    with pytest.raises(ValueError, match="no batch fits: the best one misses"):
        SPEAR(searches=0, tolerance=1e-12).reconstruct(seen, testing.job(deadline=60))


def test_a_batch_with_an_undefined_gradient_anywhere_explains_nothing():
    ours = {"first": torch.ones(2), "head": torch.ones(2)}
    assert largest_error(ours, {"first": torch.ones(2), "head": torch.ones(2)}) == 0
    for value in (float("nan"), float("inf")):
        for name in ours:
            theirs = ours | {name: torch.tensor([value, 1.0])}
            assert largest_error(ours, theirs) == float("inf")


def test_an_undefined_gradient_of_the_head_is_refused():
    seen, _ = observed(network(nn.ReLU()), size=3)
    undefined = seen.gradient | {"head.bias": torch.full((3,), float("nan"))}
    with pytest.raises(ValueError, match=r"'head\.bias' holds NaN or Inf"):
        attacked(dataclasses.replace(seen, gradient=undefined))
