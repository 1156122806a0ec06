"""The records: what an update is refused for, and that a record cannot be changed."""

import contextlib
import dataclasses

import pytest
import torch

from fedsim.errors import NotGranted, UpdateRefused
from fedsim.knowledge import Knowledge
from fedsim.records import Interception, Observation, Spec, Update

BEFORE = {"head.weight": torch.zeros(3, 2), "head.bias": torch.zeros(3), "mean": torch.zeros(2)}


def update(**changes) -> Update:
    tensors = {"head.weight": torch.ones(3, 2), "head.bias": torch.ones(3)}
    return Update(tensors, "delta", buffers={"mean": torch.ones(2)}).replace(**changes)


def test_an_honest_update_passes():
    update().check(BEFORE)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"head.weight": torch.ones(3, 2)}, "missing: 'head.bias'"),
        ({**update().tensors, "extra": torch.ones(1)}, "not asked for: 'extra'"),
        ({**update().tensors, "head.bias": torch.ones(4)}, r"shape \(4,\), expected \(3,\)"),
        ({**update().tensors, "head.bias": torch.ones(3, 1)}, "shape"),
        ({**update().tensors, "head.bias": torch.tensor([0.0, float("nan"), 0])}, "1 NaN or Inf"),
        ({**update().tensors, "head.bias": torch.full((3,), float("-inf"))}, "3 NaN or Inf of 3"),
        ({**update().tensors, "head.bias": torch.full((3,), -1e20)}, "1.0e.20"),
        ({**update().tensors, "head.bias": torch.ones(3, dtype=torch.int64)}, "int64"),
        ({**update().tensors, "head.bias": torch.ones(3, dtype=torch.bool)}, "bool"),
        ({**update().tensors, "head.bias": torch.ones(3, dtype=torch.complex64)}, "complex64"),
    ],
)
def test_a_broken_update_is_refused(tensors, words):
    with pytest.raises(UpdateRefused, match=words):
        update(tensors=tensors).check(BEFORE)


@pytest.mark.parametrize("changes", [{"steps": 0}, {"num_examples": 0}, {"num_examples": -4}])
def test_impossible_counts_are_refused(changes):
    with pytest.raises(UpdateRefused, match="expected 1 to"):
        update(**changes).check(BEFORE)


@pytest.mark.parametrize("changes", [{"lr": 1e30}, {"lr": -0.1}, {"momentum": 1.0}])
def test_a_refused_learning_rate_names_its_bounds(changes):
    with pytest.raises(UpdateRefused, match=r"0 or more, below 1e\+15, and a momentum below 1"):
        update(**changes).check(BEFORE)


def test_a_missing_buffer_is_refused():
    with pytest.raises(UpdateRefused, match="'mean'"):
        update(buffers={}).check(BEFORE)


def test_a_refusal_names_a_few_tensors_only():
    extra = {f"layer{i}" * 20: torch.ones(1) for i in range(50)}
    with pytest.raises(UpdateRefused, match="and 47 more") as refused:
        update(tensors={**update().tensors, **extra}).check(BEFORE)
    assert len(str(refused.value)) < 400


def test_an_empty_tensor_passes():
    Update({"w": torch.ones(0)}, "delta").check({"w": torch.zeros(0)})


@pytest.mark.parametrize("size", [3, 2**14, 2**14 + 1])
@pytest.mark.parametrize("kind", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("value", "refused"),
    [(6e4, ""), (9e14, ""), (-2e15, "beyond"), (float("nan"), "1 NaN"), (float("-inf"), "1 NaN")],
)
def test_one_value_that_is_too_large_is_seen_among_many(size, kind, value, refused):
    values = torch.zeros(size, dtype=kind)
    if torch.tensor(value, dtype=kind).isinf():
        value, refused = float("inf"), "1 NaN or Inf"
    values[size // 2] = value
    sent = Update({"w": values, "b": torch.ones(2, dtype=kind)}, "delta")
    before = {"w": torch.zeros(size), "b": torch.zeros(2)}
    with pytest.raises(UpdateRefused, match=refused) if refused else contextlib.nullcontext():
        sent.check(before)


def test_records_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        update().steps = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        Observation(Knowledge(0), Spec(2), "head").labels = torch.zeros(1)


def test_replace_leaves_the_original_alone():
    original = update()
    assert original.replace(steps=5).steps == 5
    assert original.steps == 1


def test_a_victim_is_named_by_round_and_clients():
    assert Interception(3, (17,), BEFORE, update()).victim == "r0003-c0017"
    assert Interception(12, (1, 20), BEFORE, update()).victim == "r0012-c0001+0020"


def test_knowing_what_is_granted_but_not_there_says_so():
    seen = Observation(Knowledge.LABELS, Spec(2), "head")
    with pytest.raises(NotGranted, match="none to give"):
        seen.know(Knowledge.LABELS)
