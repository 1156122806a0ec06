"""Image models that a function of the user's own makes: attacked, or refused by `check`."""

import csv

import pytest
from support.own_code import beside, fresh

from fedsim import load
from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import DataError, PluginError, ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.models import as_architecture

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, shape, *, norm=False, drop=0.0, tied="", width=16, scale=1.0):
        super().__init__()
        self.scale = scale
        self.first = nn.Linear(shape[0] * shape[1] * shape[2], width)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.drop = nn.Dropout(drop)
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)
        self.other = nn.Linear(classes, width) if tied == "head" else None
        if tied == "hidden":
            self.two.weight = self.one.weight
        if tied == "head":
            self.two = nn.Linear(width, classes)
            self.fc.weight = self.two.weight

    def forward(self, inputs):
        hidden = self.drop(self.norm(self.first(inputs.flatten(1))).relu())
        hidden = self.two(self.one(hidden).relu())
        hidden = hidden if self.other is None else self.other(hidden)
        return self.fc(hidden.relu()) * self.scale if self.scale != 1.0 else self.fc(hidden.relu())


class Unused(Net):
    def forward(self, inputs):
        return self.fc(self.first(inputs.flatten(1)))


class Two(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.fc, self.rest = nn.Linear(64, classes), nn.Linear(64, classes)

    def forward(self, inputs):
        return self.fc(inputs.flatten(1)) + self.rest(inputs.flatten(1))


def make(classes, shape, **settings):
    return Net(classes, shape, **settings)


def unused(classes, shape):
    return Unused(classes, shape)


def two(classes, shape):
    return Two(classes, shape)


def wide(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))


def convolution(classes, shape):
    return nn.Sequential(nn.Conv2d(1, classes, 8), nn.Flatten())


def narrow(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(10, classes))


def pair(classes, shape):
    class Pair(Net):
        def forward(self, inputs):
            return super().forward(inputs), inputs

    return Pair(classes, shape)


def lazy(classes, shape):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def asserts(classes, shape):
    class Asserts(Net):
        def forward(self, inputs):
            assert inputs.shape[-1] == 32, "expects 32 pixels"
            return super().forward(inputs)

    return Asserts(classes, shape)


def twice(classes, shape):
    class Twice(Net):
        def forward(self, inputs):
            super().forward(inputs.flip(-1))
            return super().forward(inputs)

    return Twice(classes, shape)


def raises(classes, shape):
    raise KeyError("settings")


def nothing(classes, shape):
    pass


def short(classes, shape):
    net = Net(classes, shape)
    net.one.bfloat16()
    net.two.register_forward_pre_hook(lambda layer, given: (given[0].float(),))
    net.one.register_forward_pre_hook(lambda layer, given: (given[0].bfloat16(),))
    return net


class Doubling(Net):
    def forward(self, inputs):
        return super().forward(inputs.mul_(2))


def doubling(classes, shape):
    return Doubling(classes, shape)


class FrozenNorm(Net):
    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self


def frozen_norm(classes, shape):
    return FrozenNorm(classes, shape, norm=True)


number = 3
"""

SCENARIO = """
[task]
name = "images"
test_examples = 100
auxiliary_fraction = 0.02
model = {model}

[training]
algorithm = "fedsgd"
rounds = 2
clients = 2
batch_size = 4

[threat]
grants = "auxiliary"

[[adversaries]]
name = "llg"
variant = "llg*"
"""


def scenario(folder, name, settings="", *overrides):
    module = fresh()
    model = f'{{name = "{module}:{name}"{settings}}}'
    path = beside(folder, SCENARIO.format(model=model), **{module: NETS})
    return Scenario.load(path, [*overrides, "engine.workers=1"])


@pytest.mark.parametrize(
    "settings",
    ["", ", norm = true", ", drop = 0.5", ', tied = "hidden"', ', scale = 2.0, head = "fc"'],
    ids=["plain", "batch normalisation", "dropout", "tied weights", "a named head"],
)
def test_it_trains_and_is_attacked(tmp_path, settings):
    simulate(scenario(tmp_path, "make", settings), tmp_path / "run")
    with (tmp_path / "run" / "findings.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["metric"] == "asr"]
    assert [row["status"] for row in rows] == ["ok"] * 4
    assert sum(float(row["value"]) - float(row["baseline"]) for row in rows) > 4 * 0.2


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("make", ', tied = "head"', "the head 'fc' shares its weight with 'two.weight'"),
        ("make", ", scale = 2.0", "which layer of model .* is the head"),
        ("make", ', head = "fcc"', "'fcc' is no linear layer .* Did you mean 'fc'"),
        ("make", ", depth = 3", r"classes=10, shape=\(1, 8, 8\), depth=3\) raised TypeError"),
        ("unused", "", "does not depend on one.weight, one.bias, two.weight, two.bias"),
        ("two", "", "Name it with task.model.head; linear layers with 10 outputs: fc, rest"),
        ("wide", "", r"returns \(1, 11\) for one example, expected \(1, 10\)"),
        ("convolution", "", "linear layers with 10 outputs: none"),
        ("narrow", "", r"cannot take inputs of shape \(1, 1, 8, 8\): RuntimeError"),
        ("pair", "", r"returns tuple for one example, expected \(1, 10\)"),
        ("raises", "", "raised KeyError: 'settings'"),
        ("lazy", "", "'1.weight' has no shape before its first input. Use a layer with its sizes"),
        ("asserts", "", "cannot take inputs of .*: AssertionError: expects 32 pixels"),
        ("twice", "", "calls its head 'fc' 2 times for one example"),
        ("twice", ', head = "fc"', "calls its head 'fc' 2 times for one example"),
        ("nothing", "", "returned NoneType, expected a torch.nn.Module"),
        ("number", "", "is 3; expected a function"),
        ("short", "", "'one.weight' is bfloat16, .* expected float32"),
        ("doubling", "", "changes its inputs in place"),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_the_run(tmp_path, name, settings, said):
    with pytest.raises(DataError, match=said):
        preflight(scenario(tmp_path, name, settings))


def test_statistics_that_the_model_freezes_stay_frozen_in_training(tmp_path):
    simulate(scenario(tmp_path, "frozen_norm"), tmp_path / "run")
    for one in load(tmp_path / "run", trust=True).interceptions:
        for name, value in one.update.buffers.items():
            assert (value == one.before[name]).all()


def test_batch_normalisation_of_one_example_is_refused(tmp_path):
    with pytest.raises(DataError, match="Batch normalisation needs two examples: raise training"):
        preflight(scenario(tmp_path, "make", ", norm = true", "training.batch_size=1"))


def test_a_loss_that_is_not_finite_is_refused(tmp_path):
    with pytest.raises(DataError, match="NaN or infinite on a batch of 4"):
        preflight(scenario(tmp_path, "make", ', scale = nan, head = "fc"'))


def test_settings_of_the_function_are_not_fedsims(tmp_path):
    model = as_architecture({"name": "nets:make", "head": "fc", "width": 3})
    assert (model.name, model.head, model.model_extra) == ("nets:make", "fc", {"width": 3})
    with pytest.raises(ScenarioError, match=r"task\.model\.head"):
        as_architecture({"name": "nets:make", "head": 3})


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
def test_a_model_that_cannot_be_copied_is_refused_in_a_sentence(tmp_path):
    module = fresh()
    text = f'[task]\nname = "images"\ndata = "digits"\nmodel = "{module}:normed"\n'
    net = """
from torch import nn

def normed(classes, shape):
    first = nn.utils.weight_norm(nn.Linear(64, 8))
    return nn.Sequential(nn.Flatten(), first, nn.Linear(8, classes))
"""
    run = Scenario.load(beside(tmp_path, text, **{module: net}))
    with pytest.raises(PluginError, match=r"cannot be copied: .*; use torch.nn.utils.parametriz"):
        preflight(run)
