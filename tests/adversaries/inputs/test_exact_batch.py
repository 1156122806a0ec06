"""exact-batch gives every input of a perceptron's batch, or says why not."""

import dataclasses
from collections import OrderedDict

import pytest
import torch
from support.perceptrons import SPEC, Normalised, attacked, error, observed, perceptron
from torch import nn

from adversaries import ExactBatch
from adversaries.inputs.exact_batch.layer import Layer
from adversaries.inputs.layer_chain import ACTIVATIONS
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.spec import Column, TabularSpec
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel


@pytest.mark.parametrize("labels_from", ["given", "llg"])
@pytest.mark.parametrize("depth", [1, 2])
def test_every_image_through_relus_with_repeated_labels(depth, labels_from):
    seen, truth = observed(perceptron(*[nn.ReLU() for _ in range(depth)]))
    claimed = attacked(seen, labels_from)
    assert error(claimed, truth) < 1e-8
    assert METRICS["label_exact"].score(claimed, truth, SPEC) == 1
    assert claimed.diagnostics["residual"] < 1e-5
    assert claimed.diagnostics["mismatch"] < 1e-3


@pytest.mark.parametrize(
    "activation",
    [nn.Sigmoid, nn.Tanh, nn.ELU, nn.LeakyReLU, lambda: nn.LeakyReLU(0.2)],
    ids=["sigmoid", "tanh", "elu", "leaky_relu", "leaky_relu_0.2"],
)
def test_every_image_through_activations_with_an_inverse(activation):
    seen, truth = observed(perceptron(activation(), activation()), [3, 8, 7, 5, 0, 1])
    assert error(attacked(seen), truth) < 1e-5


@pytest.mark.parametrize("activation", [nn.SiLU, nn.GELU], ids=lambda one: one.__name__)
def test_every_image_through_activations_that_fall_and_rise(activation):
    model = perceptron(activation(), activation())
    layer = model.module.layer0
    with torch.no_grad():
        layer.weight *= 4
        layer.bias *= 4
    seen, truth = observed(model)
    falling = nn.functional.linear(torch.stack(truth.inputs).flatten(1), layer.weight, layer.bias)
    assert (falling < -1.3).float().mean() > 0.1, "many outputs are of the falling branch"
    assert error(attacked(seen), truth) < 1e-8


def normalised(*names: str, bias: bool = True) -> VictimModel:
    """Parts by name: a layer, a layer normalisation with random parameters, or an activation."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        parts: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
        width = 36
        for number, name in enumerate(names):
            part = nn.Linear(width, 256, bias=bias) if name == "Linear" else nn.LayerNorm(256)
            if name == "LayerNorm":
                nn.init.uniform_(part.weight, 0.8, 1.2)
                nn.init.uniform_(part.bias, -0.2, 0.2)
            width = 256
            known = name in ("Linear", "LayerNorm")
            parts.append((f"{name}{number}", part if known else getattr(nn, name)()))
        module = nn.Sequential(OrderedDict([*parts, ("head", nn.Linear(width, 12))]))
    return VictimModel(module, head="head", loss=cross_entropy)


@pytest.mark.parametrize(
    "names",
    [
        ("Linear", "LayerNorm", "ReLU"),
        ("Linear", "LayerNorm", "Tanh"),
        ("Linear", "LayerNorm", "SiLU"),
        ("Linear", "LayerNorm"),
        ("Linear", "ReLU", "LayerNorm"),
        ("Linear", "LayerNorm", "GELU", "Linear", "ReLU", "LayerNorm", "Linear", "ReLU"),
    ],
    ids="-".join,
)
def test_every_image_through_layer_normalisation(names):
    seen, truth = observed(normalised(*names), [3, 8, 7, 5])
    assert error(attacked(seen), truth) < 1e-8


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("Linear", "Tanh", "LayerNorm"), "layer normalisation behind tanh hides mean and scale"),
        (("Linear", "LayerNorm", "LayerNorm"), "one layer normalisation behind a layer"),
    ],
)
def test_layer_normalisation_that_cannot_be_undone_is_refused(names, why):
    seen, _ = observed(normalised(*names), [3, 8, 7, 5])
    with pytest.raises(ValueError, match=why):
        attacked(seen)


def test_layer_normalisation_behind_a_layer_without_a_bias_is_refused():
    seen, _ = observed(normalised("Linear", "LayerNorm", "ReLU", bias=False), [3, 8, 7, 5])
    with pytest.raises(ValueError, match=r"'Linear0' has no bias, by which"):
        attacked(seen)


def test_layer_normalisation_behind_a_frozen_bias_is_refused_and_warned_of():
    model = normalised("Linear", "LayerNorm", "ReLU")
    model.spec, model.trained = SPEC, model.trained - {"Linear0.bias"}
    why = "no gradient of 'Linear0.bias' is sent"
    with pytest.raises(ValueError, match=why):
        attacked(observed(model, [3, 8, 7, 5])[0])
    assert any(why in one for one in ExactBatch().cautions(model))


def test_layer_normalisation_with_a_gain_of_zero_is_refused():
    model = normalised("Linear", "ReLU", "LayerNorm")
    with torch.no_grad():
        model.module.LayerNorm2.weight[3] = 0
    with pytest.raises(ValueError, match="behind 'Linear0' has a gain of zero, which hides"):
        attacked(observed(model, [3, 8, 7, 5])[0])


@pytest.mark.parametrize("running", [True, False])
def test_inputs_that_batch_statistics_normalise_are_refused_and_warned_of(running):
    parts = OrderedDict(perceptron(nn.ReLU()).module.named_children())
    norm = nn.BatchNorm2d(1, affine=False, track_running_stats=running)
    module = nn.Sequential(OrderedDict([("norm", norm), *parts.items()]))
    model = VictimModel(module, head="head", loss=cross_entropy, spec=SPEC)
    why = "'layer0' depends on the rest of the batch, as with batch statistics"
    with pytest.raises(ValueError, match=why):
        attacked(observed(model, [3, 8, 7, 5])[0])
    assert any(why in one for one in ExactBatch().cautions(model))


def test_inputs_that_running_statistics_normalise_come_back():
    parts = OrderedDict(perceptron(nn.ReLU()).module.named_children())
    norm = nn.BatchNorm2d(1, affine=False)
    norm(torch.rand(8, 1, 6, 6))
    module = nn.Sequential(OrderedDict([("norm", norm), *parts.items()])).eval()
    seen, truth = observed(VictimModel(module, head="head", loss=cross_entropy), [3, 8, 7, 5])
    assert error(attacked(seen), truth) < 1e-8


def test_layer_normalisation_of_the_inputs_is_refused():
    model = perceptron(nn.ReLU())
    parts = OrderedDict(model.module.named_children())
    body = [("flatten", parts.pop("flatten")), ("norm", nn.LayerNorm(36)), *parts.items()]
    module = nn.Sequential(OrderedDict(body))
    seen, _ = observed(VictimModel(module, head="head", loss=cross_entropy), [3, 8, 7, 5])
    with pytest.raises(ValueError, match="'norm' hides mean and scale of the inputs"):
        attacked(seen)


def test_the_gradient_of_the_bias_shows_units_that_were_misread():
    rng = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(64, 30, generator=rng), torch.randn(64, generator=rng)
    inputs = torch.rand(24, 30, generator=rng).double()
    relu = next(one for one in ACTIVATIONS if one.name == "relu")
    layer = Layer("layer", weight.double(), bias.double(), relu)
    outputs = layer.outputs(inputs)
    upstream = torch.randn(24, 64, generator=rng).double()
    errors = layer.errors(inputs, upstream)
    gradient = {"layer.weight": errors.T @ inputs, "layer.bias": errors.sum(dim=0)}
    misread = outputs.clone()
    misread[0, :20] = 1.0 * (outputs[0, :20] == 0)
    found = layer.inputs(misread, upstream, gradient, 1e-6)
    torch.testing.assert_close(found, inputs)


def test_a_single_image_where_most_units_do_not_fire():
    seen, truth = observed(perceptron(nn.ReLU(), width=20), [4])
    assert error(attacked(seen), truth) < 1e-8


def test_inputs_stand_beside_their_labels():
    seen, truth = observed(perceptron(nn.ReLU()), [3, 8, 7, 5])
    claimed = attacked(seen)
    ours = {int(k): one for k, one in zip(claimed.labels, claimed.inputs, strict=True)}
    for label, true in zip(truth.labels.tolist(), truth.inputs, strict=True):
        torch.testing.assert_close(ours[label], true, rtol=0, atol=1e-4)


def test_rows_of_a_table():
    spec = TabularSpec(classes=8, columns=tuple(Column(f"c{i}") for i in range(9)))
    seen, truth = observed(perceptron(nn.ReLU(), inputs=9, classes=8), [1, 1, 5, 2], spec)
    assert METRICS["row_exact"].score(attacked(seen), truth, spec) == 1


def test_a_model_that_normalises_its_inputs():
    module = Normalised(perceptron(nn.ReLU()).module)
    model = VictimModel(module, head="inner.head", loss=cross_entropy)
    seen, truth = observed(model)
    seen = dataclasses.replace(seen, head=model.head)
    assert error(attacked(seen), truth) < 1e-8


def test_a_gradient_of_another_batch_below_the_head_is_refused():
    model = perceptron(nn.ReLU())
    seen, _ = observed(model)
    other, _ = observed(model, seed=1)
    mixed = {**seen.gradient, "layer0.weight": other.gradient["layer0.weight"]}
    with pytest.raises(ValueError, match=r"features fit .*but no inputs do"):
        attacked(dataclasses.replace(seen, gradient=mixed))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (testing.network(), "'conv.bias' is no fully connected layer"),
        (perceptron(nn.Mish()), "between the layers 'layer0' and 'head' is none of"),
        (perceptron(nn.ReLU(), nn.Dropout(0.5)), "drops units at random"),
    ],
    ids=["convolution", "mish", "dropout"],
)
def test_other_networks_are_refused_and_warned_of(model, why):
    spec = dataclasses.replace(SPEC, classes=model.module.head.out_features)
    model.spec = spec
    seen, _ = observed(model, [1, 2, 3], spec)
    with pytest.raises(ValueError, match=why):
        attacked(seen)
    assert any(why.partition("'")[0] in one for one in ExactBatch().cautions(model))


def test_a_layer_that_is_not_trained_is_warned_of():
    model = perceptron(nn.ReLU())
    model.spec, model.trained = SPEC, frozenset({"head.weight", "head.bias"})
    (caution,) = ExactBatch().cautions(model)
    assert "no gradient of 'layer0.weight' is sent: the weight is not trained" in caution


def test_a_model_that_takes_one_dtype_only_is_warned_of():
    model = perceptron(nn.ReLU())
    model.module.layer0.register_forward_pre_hook(lambda _, given: (given[0].half(),))
    model.spec = SPEC
    (caution,) = ExactBatch().cautions(model)
    assert caution.startswith("the model cannot be run in float64: ")


def test_a_layer_whose_gradient_was_not_sent_is_refused():
    seen, _ = observed(perceptron(nn.ReLU()))
    sent = {k: v for k, v in seen.gradient.items() if k != "layer0.weight"}
    with pytest.raises(ValueError, match=r"no gradient of 'layer0\.weight'"):
        attacked(dataclasses.replace(seen, gradient=sent))


def test_a_gradient_below_the_head_that_is_not_finite_is_refused():
    seen, _ = observed(perceptron(nn.ReLU()))
    spoilt = {**seen.gradient, "layer0.weight": seen.gradient["layer0.weight"] / 0}
    with pytest.raises(ValueError, match="'layer0' holds NaN or Inf"):
        attacked(dataclasses.replace(seen, gradient=spoilt))


def test_an_example_that_leaves_hardly_a_trace_is_not_claimed():
    model, labels = perceptron(nn.ReLU()), [3, 8, 7, 5]
    _, truth = observed(model, labels)
    module = model.module
    with torch.no_grad():
        features = module[:-1](torch.stack(list(truth.inputs)))
        # A direction that the last example alone has: its label is predicted almost surely.
        alone = torch.linalg.pinv(features)[:, -1]
        module.head.weight[5] += 16 * alone
    seen, _ = observed(model, labels)
    with pytest.raises(ValueError, match=r"the batch fits .*it leaves hardly a trace"):
        attacked(seen)
    anyhow = ExactBatch(labels_from="given", most_expected_error=1e9, tolerance=0.9)
    claimed = anyhow.reconstruct(seen, testing.job())
    wrong = [
        min(float((ours - theirs).square().mean()) for ours in claimed.inputs or [])
        for theirs in truth.inputs
    ]
    assert wrong[-1] > 1e-6 > max(wrong[:-1])
