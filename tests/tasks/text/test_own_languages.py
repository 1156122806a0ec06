"""Language models that a function of the user's own makes: attacked, or refused by `check`."""

import csv

import pytest
import torch
from support.own_code import beside, fresh
from support.tiny import rows

from fedsim.engine.preflight import preflight
from fedsim.engine.simulate import simulate
from fedsim.errors import DataError, ScenarioError
from fedsim.scenario import Scenario
from fedsim.tasks.text.languages import OwnLanguage, as_language
from fedsim.tasks.text.languages.language import logits

pytestmark = pytest.mark.usefixtures("unreported")

NETS = """
from types import SimpleNamespace

import torch
from torch import nn


class Mean(nn.Module):
    def __init__(self, vocabulary, classes, length, *, width=16, drop=0.0, rows=0):
        super().__init__()
        self.embed = nn.Embedding(vocabulary + rows, width)
        self.drop = nn.Dropout(drop)
        self.hidden = nn.Linear(width, width)
        self.fc = nn.Linear(width, classes)

    def pooled(self, ids, mask):
        kept = mask.unsqueeze(2)
        return (self.embed(ids) * kept).sum(1) / kept.sum(1)

    def forward(self, ids, mask):
        return self.fc(self.drop(self.hidden(self.pooled(ids, mask)).relu()))


class Recurrent(nn.Module):
    def __init__(self, vocabulary, classes, length, *, width=16, tied=False, positions=0):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(positions or length, width)
        self.gru = nn.GRU(width, width, 2, batch_first=True, dropout=0.5)
        self.decoder = nn.Linear(width, classes)
        if tied:
            self.decoder.weight = self.words.weight

    def forward(self, ids, mask):
        places = self.places(torch.arange(ids.shape[1], device=ids.device))
        states, _ = self.gru(self.words(ids) + places)
        return SimpleNamespace(logits=self.decoder(states))


class Twice(Mean):
    def __init__(self, vocabulary, classes, length):
        super().__init__(vocabulary, classes, length)
        self.other = nn.Embedding(vocabulary, 3)


class Ids(Mean):
    def forward(self, ids, mask):
        return super().forward(ids, (ids > 5).long() + mask)


class Aside(Mean):
    def forward(self, ids, mask):
        return self.fc(self.hidden(nn.functional.embedding(ids, self.embed.weight).mean(1)))


class Unused(Mean):
    def forward(self, ids, mask):
        return self.fc(self.pooled(ids, mask))


class Pair(Mean):
    def forward(self, ids, mask):
        return super().forward(ids, mask), ids


class IdsAlone(Mean):
    def forward(self, ids):
        return super().forward(ids, torch.ones_like(ids))


def raises(vocabulary, classes, length):
    raise KeyError("settings")
"""

SCENARIO = """
[task]
name = "text"
test_examples = 8
vocabulary = 600
auxiliary_fraction = 0.1
model = {model}

[training]
algorithm = "fedsgd"
rounds = 2
clients = 4
clients_per_round = 2
batch_size = 2

[threat]
grants = "auxiliary"

{adversaries}
"""
LLG = '[[adversaries]]\nname = "llg"\nvariant = "llg+"\n[[adversaries]]\nname = "rlg"\n'


def scenario(folder, name, settings="", *overrides, adversaries=LLG):
    module = fresh()
    model = f'{{name = "{module}:{name}"{settings}}}'
    text = SCENARIO.format(model=model, adversaries=adversaries)
    return Scenario.load(beside(folder, text, **{module: NETS}), [*overrides, "engine.workers=1"])


def scores(folder, adversary, metric):
    with (folder / "findings.csv").open(newline="") as file:
        found = [row for row in csv.DictReader(file) if row["adversary"] == adversary]
    assert found
    assert {row["status"] for row in found} == {"ok"}
    return [float(row["value"]) for row in found if row["metric"] == metric]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("Mean", ""), ("Mean", ', drop = 0.5, width = 8, head = "fc"')],
    ids=["plain", "dropout and a named head"],
)
def test_labels_of_a_classifier_are_recovered(tmp_path, name, settings):
    simulate(scenario(tmp_path, name, settings), tmp_path / "run")
    recovered = scores(tmp_path / "run", "llg", "asr")
    assert len(recovered) == 4
    assert sum(recovered) / 4 > 0.8
    assert scores(tmp_path / "run", "rlg", "label_set_exact") == [1.0] * 4
    assert {row["metric"] for row in rows(tmp_path / "run", "utility.csv")} >= {"loss", "accuracy"}


def test_words_of_a_masked_language_model_are_recovered(tmp_path):
    leak = '[[adversaries]]\nname = "token-leak"\n[[adversaries]]\nname = "bias-signs"\n'
    run = scenario(tmp_path, "Recurrent", "", "task.task=masked-lm", adversaries=leak)
    simulate(run, tmp_path / "run")
    assert min(scores(tmp_path / "run", "token-leak", "token_set_f1")) > 0.7
    assert min(scores(tmp_path / "run", "bias-signs", "label_precision")) == 1.0


def test_gradients_are_matched_from_word_embeddings(tmp_path):
    tag = '[[adversaries]]\nname = "tag"\nsteps = 60\nrestarts = 1\n'
    overrides = ("threat.grants=full", "training.batch_size=1", "training.rounds=1")
    run = scenario(tmp_path, "Mean", "", *overrides, adversaries=tag)
    simulate(run, tmp_path / "run")
    assert len(found := scores(tmp_path / "run", "tag", "gradient_distance")) == 2
    assert max(found) < 0.01


def test_logits_start_from_word_embeddings_and_padding_is_masked(tmp_path):
    task = scenario(tmp_path, "Mean").build_task()
    module = task.module().eval()
    assert (task.head, task.words) == ("own.fc", "own.embed.weight")
    ids = torch.tensor([[2, 40, 41, 3], [2, 42, 3, 0]])
    lengths = torch.tensor([4, 3])
    found = logits(module, ids, lengths=lengths)
    embedded = module.own.embed(ids)
    assert torch.equal(logits(module, embedded, lengths=lengths, at="embedding"), found)
    torch.testing.assert_close(logits(module, ids[1:, :3]), found[1:])


def test_dropout_is_on_where_the_task_says_so(tmp_path):
    for number, on in enumerate((False, True)):
        module = scenario(
            tmp_path / str(number), "Recurrent", "", "task.task=masked-lm",
            f"task.dropout={str(on).lower()}",
        ).build_task().module()  # fmt: skip
        assert module.own.gru.dropout == (0.5 if on else 0.0)
    task = scenario(tmp_path / "mean", "Mean", ", drop = 0.5").build_task()
    assert not task.victim(task.arrays(task.module())).drops


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("Mean", ", rows = 1", r"one nn.Embedding with 600 rows .* found 0 .*'embed': 601"),
        ("Twice", "", r"found 2 .*'embed': 600, 'other': 600"),
        ("Ids", "", "depend on the token ids in another way than through the layer 'embed'"),
        ("Aside", "", "depend on the token ids in another way"),
        ("Unused", "", "does not depend on own.hidden.weight, own.hidden.bias"),
        ("Pair", "", r"returns tuple for one example, expected \(1, 4\)"),
        ("IdsAlone", "", r"cannot take token ids \(1, 128\) and a mask of that shape: TypeError"),
        ("Recurrent", "", r"returns \(1, 128, 4\) for one example, expected \(1, 4\)"),
        ("Mean", ', head = "fcc"', "'fcc' is no linear layer .* Did you mean 'fc'"),
        ("Mean", ", depth = 3", r"vocabulary=600, classes=4, length=128, depth=3\) raised TypeErr"),
        ("raises", "", "raised KeyError: 'settings'"),
        ("Mean", ", length = 4", "longest"),
    ],
)
def test_what_cannot_be_attacked_is_refused_before_the_run(tmp_path, name, settings, said):
    with pytest.raises(DataError, match=said):
        preflight(scenario(tmp_path, name, settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (", tied = true", "the head 'decoder' shares its weight with 'words.weight'"),
        (", positions = 16", r"cannot take token ids \(1, 128\) and a mask of that shape"),
    ],
)
def test_language_models_are_refused_before_the_run(tmp_path, settings, said):
    with pytest.raises(DataError, match=said):
        preflight(scenario(tmp_path, "Recurrent", settings, "task.task=masked-lm"))


def test_settings_of_the_function_are_not_fedsims():
    model = as_language({"name": "nets:make", "length": 32, "width": 3})
    assert isinstance(model, OwnLanguage)
    assert (model.length, model.model_extra) == (32, {"width": 3})
    with pytest.raises(ScenarioError, match=r"task\.model\.length"):
        as_language({"name": "nets:make", "length": "long"})
