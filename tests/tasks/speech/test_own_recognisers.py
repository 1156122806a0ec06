"""Recognisers that a function of the user's own makes: attacked, or refused by `check`."""

import pytest
import torch
from support.own_code import beside, fresh
from support.tiny import rows

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import DataError, ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.speech.recognisers import OwnRecogniser, as_recogniser

NETS = """
import torch
from torch import nn


class Frames(nn.Module):
    def __init__(self, features, classes, *, width=48, drop=0.0):
        super().__init__()
        self.first = nn.Linear(9 * features, width)
        self.drop = nn.Dropout(drop)
        self.fc = nn.Linear(width, classes)

    def forward(self, frames, lengths):
        padded = nn.functional.pad(frames, (0, 0, 4, 4))
        windows = padded.unfold(1, 9, 1).transpose(2, 3).flatten(2)
        return self.fc(self.drop(self.first(windows).relu()))


class Halved(Frames):
    def forward(self, frames, lengths):
        return super().forward(frames[:, ::2], lengths)


class FramesAlone(Frames):
    def forward(self, frames):
        return super().forward(frames, None)


class Unused(Frames):
    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.other = nn.Linear(features, classes)


class Logged(Frames):
    def forward(self, frames, lengths):
        return super().forward(frames, lengths).log_softmax(dim=2)


class Tied(Frames):
    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.back = nn.Linear(48, classes)
        self.back.weight = self.fc.weight

    def forward(self, frames, lengths):
        return super().forward(frames, lengths) * self.back(torch.ones(48))


def wide(features, classes):
    return Frames(features, classes + 1)


class Blank(Frames):
    def __init__(self, features, classes):
        super().__init__(features, classes)
        self.blank = nn.Linear(2, 2)


def nothing(features, classes):
    pass
"""

SCENARIO = """
[task]
name = "speech"
speakers = 4
utterances = 8
longest = 30
test_examples = 3
model = {model}

[training]
algorithm = "fedsgd"
rounds = 2
clients = 4
clients_per_round = 2
batch_size = 1

[[adversaries]]
name = "rlg"
"""


def scenario(folder, name, settings="", *overrides):
    module = fresh()
    model = f'{{name = "{module}:{name}"{settings}}}'
    path = beside(folder, SCENARIO.format(model=model), **{module: NETS})
    return Scenario.load(path, [*overrides, "engine.workers=1"])


@pytest.mark.parametrize(
    ("name", "settings"),
    [("Frames", ", width = 64"), ("Frames", ", drop = 0.2"), ("Logged", ', head = "fc"')],
    ids=["plain", "dropout", "a named head"],
)
def test_it_trains_and_is_attacked(tmp_path, name, settings):
    simulate(scenario(tmp_path, name, settings), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert {row["status"] for row in found} == {"ok"}
    scores = [row for row in found if row["metric"] == "label_f1"]
    assert len(scores) == 4
    assert sum(float(row["value"]) - float(row["baseline"]) for row in scores) > 4 * 0.1
    assert {row["metric"] for row in rows(tmp_path / "run", "utility.csv")} >= {"loss", "wer"}


def test_it_is_trained_with_ctc_on_characters(tmp_path):
    task = scenario(tmp_path, "Frames").build_task()
    module = task.module()
    assert (task.head, task.spec.has_blank, module.blank) == ("fc", True, 0)
    frames, lengths = torch.randn(2, 6, 26), torch.tensor([6, 2])
    with torch.no_grad():
        module.fc.weight.zero_()
        module.fc.bias.copy_(torch.arange(29.0))
    assert [one.tolist() for one in task.model.transcribe(module, frames, lengths, 9)] == [[28]] * 2


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Halved", "", r"returns \(1, 4, 29\) for one example, expected \(1, 8, 29\)"),
        ("wide", "", r"returns \(1, 8, 30\) for one example, expected \(1, 8, 29\)"),
        ("FramesAlone", "", r"cannot take frames of shape \(1, 8, 26\) and their number, \(1,\)"),
        ("Unused", "", "does not depend on other.weight, other.bias"),
        ("Logged", "", "Name it with task.model.head; linear layers with 29 outputs: fc"),
        ("Tied", ', head = "fc"', "the head 'fc' shares its weight with 'back.weight'"),
        ("Frames", ", depth = 2", r"features=26, classes=29, depth=2\) raised TypeError"),
        ("Blank", "", "has an attribute 'blank' of its own"),
        ("nothing", "", "returned NoneType, expected a torch.nn.Module"),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_the_run(tmp_path, name, settings, said):
    with pytest.raises(DataError, match=said):
        preflight(scenario(tmp_path, name, settings))


def test_settings_of_the_function_are_not_fedsims():
    model = as_recogniser({"name": "nets:make", "head": "fc", "width": 3})
    assert isinstance(model, OwnRecogniser)
    assert (model.head, model.model_extra) == ("fc", {"width": 3})
    with pytest.raises(ScenarioError, match=r"task\.model\.head"):
        as_recogniser({"name": "nets:make", "head": 3})
