"""Every registered defense keeps its contract, and says what it does not go together with."""

import dataclasses
import math

import pytest
import torch
from support.tiny import scenario
from support.updates import head_gradient, protect

from defenses import Dropout, Int8, Sign, TopK
from defenses.dropout import is_activation
from fedsim import testing
from fedsim.defense import Defense, MeanGradient, Training, contradictions
from fedsim.errors import PluginError, ScenarioError
from fedsim.plugin import find, make, names
from fedsim.records import Batch, Update
from fedsim.scenario.built import build
from fedsim.training.local import local_training
from fedsim.training.local import protect as apply


@pytest.fixture
def update():
    return head_gradient()


def training(module=None):
    model, batch = testing.network(), testing.batch()

    def loss(module, batch):
        return torch.nn.functional.cross_entropy(module(batch.inputs), batch.labels)

    plain = MeanGradient(loss, frozenset(model.parameters()))
    module = module or model.module
    rng = torch.Generator().manual_seed(0)
    return Training(module, (batch,), loss, plain, "fedsgd", 0.1, 0.0, 0.0, rng)


# --- all of them ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", names("defenses"))
def test_keeps_its_contract(name):
    assert testing.conformance(find("defenses", name)) == []


@pytest.mark.parametrize("name", names("defenses"))
def test_leaves_everything_but_the_tensors_alone(name, update):
    after = protect(make("defenses", name, {}), update)
    for field in dataclasses.fields(Update):
        if field.name != "tensors":
            assert getattr(after, field.name) == getattr(update, field.name), field.name


NOTHING = {
    "client-dp": {"clip": math.inf, "noise_multiplier": 0},
    "deep-gradient-compression": {"ratio": 0, "momentum": 0},
    "dp-sgd": {"clip": math.inf, "noise_multiplier": 0},
    "dropout": {"rate": 0},
    "gaussian-noise": {"sigma": 0},
    "grad-drop": {"rate": 0, "error_feedback": True},
    "gradient-mask": {"rate": 0},
    "laplacian-noise": {"sigma": 0},
    "top-k": {"k": 1, "error_feedback": True},
}
"""Settings at strength zero; formats and Flower's mods have none."""


@pytest.mark.parametrize("name", NOTHING)
def test_at_strength_zero_nothing_is_touched(name, update):
    defense, plain = make("defenses", name, NOTHING[name]), training()
    assert protect(defense, update) is update
    assert defense.prepare(plain) is plain


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gaussian-noise", {"sigma": -1}),
        ("gaussian-noise", {"sigma": float("nan")}),
        ("gaussian-noise", {"sigma": float("inf")}),
        ("laplacian-noise", {"sigma": -0.1}),
        ("top-k", {"k": 0}),
        ("top-k", {"k": 1.5}),
        ("grad-drop", {"rate": 1}),
        ("gradient-mask", {"rate": -0.1}),
        ("deep-gradient-compression", {"ratio": 1}),
        ("deep-gradient-compression", {"clip": 0}),
        ("deep-gradient-compression", {"momentum": 1}),
        ("client-dp", {"clip": 0}),
        ("client-dp", {"noise_multiplier": -1}),
        ("client-dp", {"clip": math.inf}),
        ("client-dp", {"delta": 0}),
        ("dp-sgd", {"clip": -1}),
        ("dp-sgd", {"delta": 1}),
        ("dropout", {"rate": 1}),
        ("int8", {"rounding": "down"}),
        ("qsgd", {"levels": 0}),
        ("half-precision", {"format": "fp8"}),
        ("sign", {"scale": 0}),
        ("flower-local-dp", {"epsilon": 0}),
        ("flower-fixed-clipping", {"clipping_norm": 0}),
        ("gaussian-noise", {"layers": []}),
        ("gaussian-noise", {"clients": []}),
        ("gaussian-noise", {"clients": [-1]}),
        ("dp-sgd", {"layers": ["head"]}),
        ("dropout", {"layers": ["head"]}),
    ],
)
def test_impossible_settings_are_refused_by_name(name, settings):
    with pytest.raises(ScenarioError, match=next(iter(settings))):
        make("defenses", name, settings)


# --- dropout --------------------------------------------------------------------------------


def test_the_activations_of_a_text_model_are_dropped():
    module = make("tasks", "text", {"clients": 2}).module()
    found = [name for name, part in module.named_modules() if is_activation(part)]
    layers = [name for name in found if name.endswith("intermediate_act_fn")]
    assert len(layers) == module.config.num_hidden_layers
    assert found == [*layers, "bert.pooler.activation"]


def test_dropout_trains_a_network_with_holes_and_leaves_the_model_as_it_was():
    plain = training()
    dropped = Dropout(rate=0.5).prepare(plain)
    batch = plain.batches[0]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        one, _ = dropped.gradient(plain.module, batch)
        two, _ = dropped.gradient(plain.module, batch)
    before, _ = plain.gradient(plain.module, batch)
    assert not torch.equal(one["head.weight"], two["head.weight"])
    dead = (one["head.weight"] == 0).all(dim=0)
    assert 0 < int(dead.sum()) < dead.numel()  # a dropped unit gives the head no gradient
    assert not (before["head.weight"] == 0).all(dim=0).any()
    after, _ = plain.gradient(plain.module, batch)
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_dropout_names_what_it_cannot_find():
    with pytest.raises(ScenarioError, match=r"no module 'haed'.*Did you mean 'head'"):
        Dropout(before=("haed",)).prepare(training())
    bare = torch.nn.Sequential(torch.nn.Linear(4, 4))
    with pytest.raises(ScenarioError, match=r"no activation modules.*before = \['0'\]"):
        Dropout().prepare(training(bare))


class Named(torch.nn.Module):
    """Words, whose mean is handed on by name."""

    def __init__(self):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(9, 40), torch.nn.Linear(40, 3)

    def forward(self, ids):
        return self.head(input=self.words(ids).mean(dim=1))


def test_dropout_reaches_inputs_that_are_handed_on_by_name():
    plain, batch = training(Named()), Batch(torch.arange(8).view(2, 4), torch.tensor([0, 1]))
    plain = plain.replace(gradient=MeanGradient(plain.loss, frozenset({"head.weight"})))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        dropped = Dropout(rate=0.9, before=("head",)).prepare(plain)
        found, _ = dropped.gradient(plain.module, batch)
    assert (found["head.weight"] == 0).all(dim=0).any()
    words = Dropout(rate=0.9, before=("words",)).prepare(plain)
    with pytest.raises(ScenarioError, match=r"\(Embedding\) receives no floating-point values"):
        words.gradient(plain.module, batch)


# --- which go together ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (["int8", "sign"], ["sign) after", "int8 fixes the form", "keep one of them"]),
        (["sign", "gaussian-noise"], ["list gaussian-noise before sign"]),
        (["half-precision", "client-dp"], ["list client-dp before half-precision"]),
        (["int8", "deep-gradient-compression"], ["before int8"]),
        (["dp-sgd", "dp-sgd"], ["two of a kind change the training"]),
    ],
)
def test_defenses_that_undo_each_other_are_refused(listed, words):
    (complaint,) = contradictions([make("defenses", name, {}) for name in listed])
    assert all(word in complaint for word in words), complaint


def test_defenses_that_go_together_are_not():
    pairs = [
        ["gaussian-noise", "sign"],
        ["int8", "top-k"],
        ["top-k", "int8"],
        ["sign", "gradient-mask"],
        ["dp-sgd", "int8"],
        ["int8", "dp-sgd"],
        ["client-dp", "top-k", "half-precision"],
        ["dropout", "dp-sgd"],
    ]
    for listed in pairs:
        assert contradictions([make("defenses", name, {}) for name in listed]) == [], listed
    apart = [Int8(clients=(0, 1)), Sign(clients=(2,))]
    assert contradictions(apart) == []
    assert contradictions([Int8(layers=("body",)), Sign(layers=("head",))]) == []
    assert contradictions([Int8(layers=("head",)), Sign(layers=("head.weight",))])
    assert contradictions([TopK(), TopK(error_feedback=True)]) == []
    assert contradictions([Int8(), TopK(error_feedback=True)])


# --- plugins that break the rules -----------------------------------------------------------


class Nothing(Defense):
    """Does nothing."""

    name = "nothing"


class Rough(Defense):
    """Breaks the rules at run time."""

    name = "rough"

    def protect(self, update, rng, state):
        update.tensors["head.bias"].add_(1)
        noise = torch.randn(())
        return update.replace(
            tensors={k: v[:1] + noise for k, v in update.tensors.items()}, kind="weights"
        )


class Hollow(Defense):
    """Has no gradient of a parameter, as autograd says of one that is not used."""

    name = "hollow"

    def prepare(self, training):
        return training.replace(gradient=lambda module, batch: ({"head.weight": None}, 0.0))


class Short(Defense):
    """Rounds to bfloat16, and leaves it at that."""

    name = "short"

    def protect(self, update, rng, state):
        return update.replace(tensors={k: v.bfloat16() for k, v in update.tensors.items()})


class Bare(Defense):
    """Returns a gradient without names."""

    name = "bare"

    def prepare(self, training):
        return training.replace(gradient=lambda module, batch: (torch.zeros(3), 0.0))


class Storing(Defense):
    """Stores a number, and does not say that it stores anything."""

    name = "storing"

    def protect(self, update, rng, state):
        state["rounds"] = 1
        return update


class Forgetful(Defense):
    """Forgets to return what it has made."""

    name = "forgetful"

    def protect(self, update, rng, state):
        update.replace(tensors={})


class Unready(Defense):
    """Forgets to return the training."""

    name = "unready"

    def prepare(self, training):
        training.replace(lr=0.0)


class Foreign(Defense):
    """Returns arrays of numpy."""

    name = "foreign"

    def protect(self, update, rng, state):
        return update.replace(tensors={k: v.numpy() for k, v in update.tensors.items()})


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (
            Storing,
            [
                "stores values in state: let the property `remembers` be True",
                "state['rounds'] is no tensor",
            ],
        ),
        (Hollow, ["other names or shapes"]),
        (Bare, ["other names or shapes"]),
        (Short, ["protect returns bfloat16, which Flower cannot send: end with .float()"]),
        (Nothing, ["does nothing"]),
        (Foreign, ["is ndarray, and no tensor: return torch tensors"]),
        (Rough, ["shape", "leave the kind", "changes the update", "global generator", "same seed"]),
    ],
)
def test_conformance_says_what_is_wrong(cls, words):
    complaints = testing.conformance(cls)
    for word in words:
        assert any(word in complaint for complaint in complaints), (word, complaints)


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (Forgetful, "forgetful: protect returned NoneType, expected a value of type Update"),
        (Storing, r"storing: state\['rounds'\] is int, expected a value of type Tensor"),
        (Foreign, r"foreign: tensors\['head.bias'\] is ndarray, expected a value of type Tensor"),
    ],
)
def test_what_protect_must_not_return_is_named(cls, words):
    update = Update({"head.bias": torch.ones(2)}, kind="gradient")
    with pytest.raises(PluginError, match=words):
        apply(update, {}, [cls()], (0, 1, 0), {})


def test_a_prepare_without_a_return_is_named():
    run = scenario()
    task = build(run).task
    with pytest.raises(PluginError, match="unready: prepare returned NoneType"):
        local_training(run, task, task.build(), (), torch.Generator(), [Unready()])
