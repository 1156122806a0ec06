"""LLG on auxiliary data that lacks classes, wrong numbers, and models that it does not suit."""

import dataclasses

import pytest
import torch
from support.llg_victims import attacked, victim
from torch import nn

from adversaries import LLG
from fedsim import testing
from fedsim.metrics import METRICS
from fedsim.records import Batch, Spec
from fedsim.tasks.images import cross_entropy
from fedsim.tasks.speech import Speech
from fedsim.tasks.text import Text
from fedsim.victim import VictimModel


def test_auxiliary_data_may_lack_classes():
    seen, truth = victim(0, 32)
    kept = (seen.auxiliary.labels != 3) & (seen.auxiliary.labels != 7)
    lacking = Batch(seen.auxiliary.inputs[kept], seen.auxiliary.labels[kept])
    claimed = attacked(dataclasses.replace(seen, auxiliary=lacking), "llg+")
    assert claimed.diagnostics["auxiliary_lacks"] == [3, 7]
    assert METRICS["asr"].score(claimed, truth, seen.spec) > 0.9


@pytest.mark.parametrize(
    ("labels", "message"),
    [([], "no auxiliary example"), ([3, 10], "from 3 to 10, expected 0 to 9")],
)
def test_auxiliary_data_with_nothing_to_use_is_refused(labels, message):
    seen, _ = victim(0, 4)
    auxiliary = Batch(torch.zeros(len(labels), 1, 8, 8), torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(ValueError, match=message):
        attacked(dataclasses.replace(seen, auxiliary=auxiliary), "llg+")


def test_auxiliary_data_of_a_single_class_will_do():
    seen, truth = victim(0, 8)
    kept = seen.auxiliary.labels == 2
    one = Batch(seen.auxiliary.inputs[kept], seen.auxiliary.labels[kept])
    claimed = attacked(dataclasses.replace(seen, auxiliary=one), "llg+")
    assert METRICS["asr"].score(claimed, truth, seen.spec) > 0.5


@pytest.mark.parametrize("variant", ["llg", "llg*", "llg+"])
def test_a_wrong_number_of_examples_is_noted(variant):
    seen, truth = victim(0, 32)
    present = len(truth.labels.unique())
    claimed = attacked(dataclasses.replace(seen, num_examples=2), variant)
    assert len(claimed.labels) == 2 < present
    assert set(claimed.labels.tolist()) <= set(truth.labels.tolist())
    assert "wrong number of examples" in claimed.diagnostics["note"]
    assert "note" not in attacked(seen, variant).diagnostics


def test_an_activation_with_negative_values_is_refused_with_the_reason():
    seen, _ = victim(0, 4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    nn.init.constant_(module[1].bias, -5.0)
    model = VictimModel(module, head="3", loss=cross_entropy)
    gradient = {"3.weight": seen.gradient["head.weight"]}
    changed = dataclasses.replace(seen, model=model, head="3", gradient=gradient)
    with pytest.raises(ValueError, match="non-negative activation"):
        attacked(changed, "llg*")


def test_constant_dummies_under_batch_normalisation_are_refused_with_the_remedy():
    # Black images normalise to nothing, and nothing reaches the head.
    seen, _ = victim(0, 4, model="resnet20")
    with pytest.raises(ValueError, match="normalised"):
        attacked(seen, "llg*", dummy="zeros")


def test_inputs_of_no_fixed_shape_leave_llg_star_without_dummies():
    seen, _ = victim(0, 4)
    with pytest.raises(ValueError, match="llg or llg\\+"):
        attacked(dataclasses.replace(seen, spec=Spec(classes=10)), "llg*")


def test_a_gradient_without_negative_entries_counts_nothing():
    seen = testing.observation(gradient={"head.weight": torch.ones(4, 3)}, num_examples=2)
    claimed = attacked(seen)
    assert claimed.label_scores.tolist() == [0] * 4
    assert len(claimed.labels) == 2


def test_a_head_that_is_not_there_is_told_with_what_could_be_it():
    seen, _ = victim(0, 4)
    with pytest.raises(ValueError, match=r"layers that could be the head: head"):
        attacked(dataclasses.replace(seen, head="fc"))


@pytest.mark.parametrize("variant", ["llg*", "llg+"])
def test_a_model_with_broken_weights_is_told(variant):
    seen, _ = victim(0, 4)
    model = seen.model.copy()
    next(iter(model.parameters().values())).data.fill_(float("nan"))
    with pytest.raises(ValueError, match="the model's own gradient holds NaN"):
        attacked(dataclasses.replace(seen, model=model), variant)


@pytest.mark.parametrize("task", [Text, Speech])
def test_llg_star_is_refused_where_inputs_have_no_fixed_shape(task):
    (said,) = LLG(variant="llg*").unsuited(task.spec_type, task.name)
    assert f"task '{task.name}'" in said
    assert 'use variant = "llg" or "llg+"' in said
    assert LLG(variant="llg+").unsuited(task.spec_type, task.name) == []
