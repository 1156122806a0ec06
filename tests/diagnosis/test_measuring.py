"""What is measured of an interception, against values that were planted."""

import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedsim
from fedsim import ImageSpec, Interception, Truth, Update, VictimModel
from fedsim.diagnosis.counting import counted
from fedsim.diagnosis.first_layer import _mixed
from fedsim.diagnosis.measuring import measure, seen_in_model
from fedsim.errors import PluginError
from fedsim.quantity import QUANTITIES
from fedsim.requirement import Requirement
from fedsim.spec import Spec
from fedsim.tasks.classification import cross_entropy

SPEC = ImageSpec(5, (1, 4, 4))


def model(activation: nn.Module, *more: nn.Module, spec: Spec | None = SPEC) -> VictimModel:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), activation, *more, nn.Linear(12, 5))
    head = str(len(module) - 1)
    return VictimModel(module, head=head, loss=cross_entropy, spec=spec)


def gradient(victim: VictimModel, examples: int = 2):
    inputs = torch.rand(examples, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(examples) % 2
    found = victim.gradient(inputs, labels)
    return {k: v.detach() for k, v in found.items()}, Truth(inputs=list(inputs), labels=labels)


def measured(victim, tensors, truth=None, clients=(0,), **more):
    before = {k: v.detach().clone() for k, v in victim.module.state_dict().items()}
    update = Update(tensors=tensors, kind="gradient", lr=0.1, **more)
    return measure(Interception(1, clients, before, update), victim, truth=truth)


def test_an_exact_gradient_shows_its_examples_and_nothing_else():
    victim = model(nn.ReLU())
    tensors, truth = gradient(victim)
    found = measured(victim, tensors, truth, clients=(0, 3), num_examples=2)
    values = found.values
    assert list(values) == list(QUANTITIES)
    assert values["examples"] == values["clients"] == 2
    assert values["head_rank"] == found.layers[victim.head].rank == 2
    assert values["head_fill"] == 2 / 4, "five classes have rows that sum to zero"
    assert values["first_fill"] == 2 / 12
    assert found.layers["1"].snr > 1e8
    assert values["noise"] < 1e-6
    assert values["zeros"] == values["opposite_signs"] == values["missing_bias"] == 0
    assert values["batch_norm"] == values["dropout"] == values["repetition"] == 0
    change = 0.1 * sum(v.square().sum() for v in tensors.values()).sqrt()
    weights = sum(v.square().sum() for v in victim.parameters().values()).sqrt()
    assert values["movement"] == pytest.approx(float((change / weights).detach()), rel=1e-5)


def test_units_that_no_example_reaches_are_dead():
    victim = model(nn.ReLU())
    with torch.no_grad():
        victim.module[1].bias[:3] = -100
    tensors, truth = gradient(victim)
    values = measured(victim, tensors, truth).values
    silent = ~tensors["1.weight"].any(dim=1)
    assert values["dead"] == pytest.approx(float(silent.double().mean()))
    assert values["dead"] == values["dead_relu"] >= 3 / 12


@pytest.mark.parametrize("spec", [SPEC, None], ids=["range known", "range unknown"])
def test_units_of_one_example_each_show_its_input_and_mixed_ones_do_not(spec):
    relu, smooth = model(nn.ReLU(), spec=spec), model(nn.Sigmoid(), spec=None)
    with torch.no_grad():
        # Half of the units for each example, by its mean.
        relu.module[1].weight[:6], relu.module[1].weight[6:] = 1.0, -1.0
        relu.module[1].bias[:6], relu.module[1].bias[6:] = -8.0, 8.0
    inputs = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    inputs = torch.stack([0.3 + inputs[0] * 0.1, 0.6 + inputs[1] * 0.1])
    found = []
    for victim in (relu, smooth):
        grads = victim.gradient(inputs, torch.tensor([0, 1]))
        tensors = {k: v.detach() for k, v in grads.items()}
        values = measured(victim, tensors, num_examples=2).values
        found.append((values["first_fill"], values["mixed_units"]))
    assert found[0] == (2 / 12, 0)
    assert found[1] == (2 / 12, 1), "a sigmoid lets every example through every unit"


def test_units_in_which_examples_cancel_show_none_of_them():
    """Ratios far from all others are mixtures of opposite signs, in whatever number."""
    inputs = torch.rand(2, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ones = torch.cat([inputs, torch.ones(2, 1, dtype=torch.float64)], dim=1)
    parts = torch.tensor([[1, 0], [2, 0], [0, 1], [0, -1], [0, 3]], dtype=torch.float64)
    assert _mixed(parts @ ones, 2, None) == 0
    cancelling = torch.tensor([[1, -0.99], [2, -1.98], [3, -2.97], [4, -3.96]]).double()
    assert _mixed(torch.cat([parts, cancelling]) @ ones, 2, None) == 0.5
    alone = torch.tensor([[1, 0.5], [0.3, 1], [1, 1.7]]).double()
    assert _mixed(alone @ ones, 2, None) == 1, "no ratio occurs twice"
    assert _mixed(alone @ ones, 2, (0.0, 1.0)) == 0.25, "three of four units lie in the range"
    assert _mixed(alone @ ones, 1, None) == 0, "all units show a single example"
    assert _mixed(0 * ones, 1, None) == 1, "no unit has a gradient"


def test_noise_in_the_first_layer_shows_beside_the_singular_values_of_the_examples():
    victim = model(nn.Sigmoid())
    tensors, _ = gradient(victim, examples=1)
    first = tensors["1.weight"]
    assert measured(victim, tensors).values["first_noise"] < 1e-6
    rng = torch.Generator().manual_seed(2)
    noise = torch.randn(first.shape, generator=rng)
    noise = noise * 0.3 * torch.linalg.matrix_norm(first, 2) / torch.linalg.matrix_norm(noise, 2)
    values = measured(victim, {**tensors, "1.weight": first + noise}).values
    assert values["first_noise"] == pytest.approx(0.3, rel=0.15)
    wide = measured(victim, {**tensors, "1.weight": first + noise}, num_examples=12).values
    assert wide["first_noise"] == 0, "as many examples as units explain everything"


def test_noise_is_measured_where_it_was_planted():
    victim = model(nn.Sigmoid())
    tensors, _ = gradient(victim)
    rng = torch.Generator().manual_seed(2)
    noise = {k: 0.03 * torch.randn(v.shape, generator=rng) for k, v in tensors.items()}

    def norm(some):
        return float(sum(v.square().sum() for v in some.values()).sqrt())

    sent = {k: v + noise[k] for k, v in tensors.items()}
    expected = norm(noise) / norm(sent)
    assert measured(victim, sent).values["noise"] == pytest.approx(expected, rel=0.35)


def test_compression_shows_as_zeros_and_as_repeated_values():
    victim = model(nn.Sigmoid())
    tensors, _ = gradient(victim)
    head = tensors[f"{victim.head}.weight"]
    kept = head * (head.abs() > head.abs().median())
    values = measured(victim, {**tensors, f"{victim.head}.weight": kept}).values
    assert values["zeros"] == pytest.approx(0.5, abs=0.02)
    assert measured(victim, tensors).values["coarseness"] < 0.1
    signs = {k: v.sign() for k, v in tensors.items()}
    assert measured(victim, signs).values["coarseness"] > 0.9


def test_features_of_both_signs_mislead_row_sums_and_rectified_ones_do_not():
    tanh = model(nn.Tanh())
    with torch.no_grad():
        tanh.module[1].bias -= 3
    for values in (measured(tanh, gradient(tanh)[0]).values, seen_in_model(tanh)):
        assert values["opposite_signs"] == 1
        assert values["signs_without_bias"] == 0, "its gradient shows the labels"
    assert seen_in_model(model(nn.ReLU()))["opposite_signs"] == 0


def test_without_a_bias_random_inputs_show_turned_signs():
    tanh = model(nn.Tanh())
    with torch.no_grad():
        tanh.module[1].bias -= 3
    tensors, _ = gradient(tanh, examples=1)
    del tensors[f"{tanh.head}.bias"]
    values = measured(tanh, tensors, num_examples=1).values
    assert values["opposite_signs"] == 1, "every feature is negative"


@pytest.mark.parametrize(("labels", "held"), [((2, 2, 2), 1), ((0, 1, 1), 2), ((0, 1, 2), 3)])
def test_the_bias_shows_how_many_classes_an_update_holds(labels, held):
    victim = model(nn.Sigmoid())
    inputs = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    tensors = {k: v.detach() for k, v in victim.gradient(inputs, torch.tensor(labels)).items()}
    values = measured(victim, tensors, num_examples=3).values
    assert values["label_share"] == held / 5
    assert values["absent"] == 0, "the head's rank is below its largest"
    assert values["guessable"] == pytest.approx(1 - 0.8**3)


def test_all_classes_seem_present_where_the_head_has_its_largest_rank():
    victim = model(nn.Sigmoid())
    inputs = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    tensors = {k: v.detach() for k, v in victim.gradient(inputs, labels).items()}
    values = measured(victim, tensors, num_examples=8).values
    assert values["head_fill"] == 1
    assert values["absent"] == pytest.approx(1 / 5)


def test_noise_in_row_sums_averages_over_the_features():
    victim = model(nn.Sigmoid())
    tensors, _ = gradient(victim, examples=1)
    rng = torch.Generator().manual_seed(2)
    name = f"{victim.head}.weight"
    entry = 0.1 * float(tensors[name].abs().max())
    noise = entry * torch.randn(tensors[name].shape, generator=rng)
    values = measured(victim, {**tensors, name: tensors[name] + noise}).values
    expected = entry * 12**0.5 / -float(tensors[name].sum(dim=1).min())
    assert values["row_noise"] == pytest.approx(expected, rel=0.4)
    assert measured(victim, tensors).values["row_noise"] < 1e-6


def test_features_of_both_signs_are_seen_with_random_inputs():
    for activation, signed in ((nn.ReLU(), False), (nn.Tanh(), True)):
        victim = model(activation)
        values = measured(victim, gradient(victim)[0], num_examples=2).values
        assert values["signed_labels"] == (values["label_share"] if signed else 0)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_networks_of_any_floating_point_type_are_measured(kind):
    usual, other = model(nn.Tanh()), model(nn.Tanh())
    other.module.to(kind)
    assert counted(other, 3) == counted(usual, 3)
    assert seen_in_model(other).keys() == seen_in_model(usual).keys()
    negative = [seen_in_model(one)["opposite_signs"] for one in (usual, other)]
    assert negative[1] == pytest.approx(negative[0], abs=1 / 16)


def test_noise_fills_the_rows_of_absent_words_and_sparsity_the_first_layer():
    torch.manual_seed(0)
    module = nn.Sequential(
        OrderedDict(words=nn.Embedding(40, 6), first=nn.Linear(6, 6), head=nn.Linear(6, 3))
    )

    def loss(module, inputs, labels, **_):
        return nn.functional.cross_entropy(module(inputs).mean(dim=1), labels)

    victim = VictimModel(module, head="head", loss=loss, words="words.weight")
    grads = victim.gradient(torch.tensor([[1, 2, 3]]), torch.tensor([0]))
    tensors = {k: v.detach() for k, v in grads.items()}
    values = measured(victim, tensors).values
    assert values["word_noise"] == values["first_zeros"] == 0
    filled = tensors["words.weight"] + 1e-3 * tensors["words.weight"].abs().max()
    assert measured(victim, {**tensors, "words.weight": filled}).values["word_noise"] > 1e-4
    first = tensors["first.weight"].clone()
    first[0, 0] = 0
    assert measured(victim, {**tensors, "first.weight": first}).values["first_zeros"] == 1 / 36


def test_batch_statistics_and_dropout_count_in_the_mode_of_the_training():
    victim = model(nn.ReLU(), nn.BatchNorm1d(12), nn.Dropout(0.1))
    tensors, _ = gradient(victim)
    values = measured(victim, tensors).values
    assert (values["batch_norm"], values["dropout"]) == (1, 1)
    victim.module.eval()
    values = measured(victim, tensors).values
    assert (values["batch_norm"], values["dropout"]) == (0, 0)


def test_input_values_count_behind_activations_without_a_second_derivative():
    for activation, values in ((nn.ReLU(), 3 * 16), (nn.LeakyReLU(), 3 * 16), (nn.Sigmoid(), 0)):
        victim = model(activation)
        tensors, _ = gradient(victim, examples=3)
        assert measured(victim, tensors, num_examples=3).values["kinked_values"] == values
    victim = model(nn.ReLU(), spec=None)
    assert measured(victim, gradient(victim)[0]).values["kinked_values"] is None


def test_labels_that_repeat_are_counted_with_the_truth_alone():
    victim = model(nn.ReLU())
    tensors, truth = gradient(victim, examples=3)  # labels 0, 1, 0
    assert measured(victim, tensors, truth).values["repetition"] == pytest.approx(2 / 3)
    assert measured(victim, tensors).values["repetition"] is None


@pytest.mark.parametrize("labels", [[-100, 2**40, -100], [0.5, -0.25, 0.5], [True, False, True]])
def test_labels_of_any_loss_are_counted(labels):
    victim = model(nn.ReLU())
    tensors, truth = gradient(victim, examples=3)
    found = measured(victim, tensors, replace(truth, labels=torch.tensor(labels)))
    assert found.values["repetition"] == pytest.approx(2 / 3)


def test_a_requirement_of_nothing_that_is_measured_is_refused():
    with pytest.raises(PluginError, match="nothing called 'exampels' is measured"):
        Requirement("exampels", "why", most=1)
    with pytest.raises(PluginError, match="examples has no bound"):
        Requirement("examples", "why")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("examples", 1, "1 example"),
        ("steps", 1, "1 local step"),
        ("batch_norm", 1, "1 layer with batch statistics"),
        ("clients", 3, "a sum over 3 clients"),
        ("optimizer", "adam", "steps of adam"),
        ("zeros", 0.9712, "97.1 % of the head's gradient set to zero"),
    ],
)
def test_a_measurement_is_said_with_its_unit(name, value, said):
    assert QUANTITIES[name].describe(value) == said


def test_a_requirement_says_what_is_needed():
    assert Requirement("examples", "", most=1).needed == "a single example"
    assert Requirement("examples", "", most=8).needed == "at most 8 examples"
    assert Requirement("dropout", "", most=0).needed == "a model without dropout"
    assert Requirement("optimizer", "", only=("sgd",)).needed == "steps of sgd"
    assert Requirement("optimizer", "", only=("sgd",)).met("unknown") is None
    assert Requirement("optimizer", "", only=("sgd",)).met("adam") is False


def test_the_page_defines_every_quantity():
    page = Path(fedsim.__file__).parent.parent / "docs" / "diagnosis.md"
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page.read_text(), re.MULTILINE))
    assert listed == {one.name: one.means for one in QUANTITIES.values()}


class Words(nn.Module):
    """Word embeddings, a layer that sees each, and a head on their sum."""

    def __init__(self):
        super().__init__()
        self.words, self.first, self.head = (
            nn.Embedding(50, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 4),
        )

    def forward(self, ids):
        return self.head(torch.tanh(self.first(self.words(ids))).sum(dim=1))


@pytest.mark.parametrize("kind", ["gradient", "weights"])
def test_rounding_of_sent_weights_is_no_rank_of_a_texts_gradient(kind):
    torch.manual_seed(0)
    net, lr = Words(), 3e-4
    model = VictimModel(net, head="head", loss=cross_entropy, words="words.weight")
    before = {name: value.detach().clone() for name, value in net.named_parameters()}
    sent = model.gradient(torch.arange(6)[None], torch.tensor([1]))
    if kind == "weights":
        sent = {name: before[name] - lr * value for name, value in sent.items()}
    update = Update(tensors=sent, kind=kind, lr=lr, num_examples=1)
    measured = measure(Interception(1, (0,), before, update), model)
    assert measured.layers["first"].rank == 6
    assert measured.values["missing_rank"] == 0
