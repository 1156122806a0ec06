"""What an isolated adversary claims comes back as it was, and odd bytes are refused."""

import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from fedsim.isolation import claims
from fedsim.metrics import plain
from fedsim.records import Reconstruction

WHOLE = Reconstruction(
    label_set=frozenset({3, 1}),
    label_counts={1: 2, 3: 1},
    labels=torch.tensor([1, 1, 3]),
    label_scores=torch.rand(5, dtype=torch.float64),
    sequences=[torch.tensor([1, 2]), torch.tensor([], dtype=torch.int64)],
    num_labels=3,
    inputs=[torch.rand(1, 2, 2), torch.rand(3).to(torch.bfloat16)],
    features=torch.rand(2, 4).T,
    tokens=[torch.tensor([7])],
    token_counts={9: 1},
    text=["a \u2028 line", ""],
    attributes={"speaker": [{"ann": 0.5, "bob": float("-inf")}]},
    objective=float("inf"),
    outcomes=["matched"],
    trace=[(0, 1.5), (1, float("nan"))],
    diagnostics={"why": "so", "large": torch.rand(1000)},
)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or one != one


def test_a_claim_comes_back_as_it_was():
    (found,) = claims.from_bytes(claims.to_bytes([WHOLE]))
    for name in Reconstruction.__slots__:
        if name not in ("diagnostics", "trace"):
            assert same(getattr(WHOLE, name), getattr(found, name)), name
    assert [step for step, _ in found.trace] == [0, 1]
    assert found.diagnostics == {"why": "so", "large": "tensor of (1000,)"}
    nothing, _ = claims.from_bytes(claims.to_bytes([Reconstruction(), WHOLE]))
    assert nothing.inputs is None
    assert nothing.label_counts is None
    assert nothing.objective is None


NEAR = {
    "inputs": torch.rand(2, 1, 3, 3),
    "label_set": [3, 1],
    "objective": torch.tensor(0.5),
    "trace": [(0, torch.tensor(1.5))],
    "label_counts": {torch.tensor(1): torch.tensor(2)},
}


def test_a_claim_is_the_same_without_a_process_of_its_own():
    claim = Reconstruction(**NEAR)
    (back,) = claims.from_bytes(claims.to_bytes([claim]))
    here = plain(claim)
    for name in NEAR:
        assert same(getattr(here, name), getattr(back, name)), name
    assert here.label_set == {1, 3}
    assert [one.shape for one in here.inputs] == [(1, 3, 3)] * 2


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("labels", [1, 2], "labels holds list, expected a tensor"),
        ("inputs", [[0.5]], "inputs[0] holds list, expected a tensor"),
        ("label_counts", [1, 2], "label_counts holds list"),
        ("label_counts", {"cat": 2}, "expected how often each number occurs"),
        ("trace", [1.0], "expected pairs"),
    ],
)
def test_a_field_of_another_type_is_named(field, value, words):
    for convert in (plain, lambda claim: claims.to_bytes([claim])):
        with pytest.raises(TypeError, match=re.escape(words)):
            convert(Reconstruction(**{field: value}))


def forged(table, tensors=None):
    text = json.dumps(table).encode()
    return claims.LENGTH.pack(len(text)) + text + save(tensors or {})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        claims.LENGTH.pack(2**63) + b"{}",
        forged({}) + b"x",
        forged(7),
        forged([7]),
        forged([{"inputs": 1}]),
        forged([{"inputs": 10**9}]),
        forged([{"inputs": -1}]),
        forged([{"label_counts": [[0, 10**15]]}]),
        forged([{"label_counts": [[0, 10**7], [1, -(10**7)]]}]),
        forged([{"label_counts": 3}]),
        forged([{"text": ["a"] * 20_000}]),
        forged([{"text": ["a" * 600_000] * 2}]),
        forged([{"tokens": 1}], {"0.tokens.0": torch.zeros(1_000_001, dtype=torch.uint8)}),
        forged([{"sequences": 1}], {"0.sequences.0": torch.zeros(1_000_001, dtype=torch.uint8)}),
        forged([{"attributes": []}]),
        forged([{"trace": [1]}]),
        claims.LENGTH.pack(200_000) + b"[" * 200_000,
        forged([{"diagnostics": "x" * 2**24}]),
        claims.LENGTH.pack(2) + b"[]" + claims.HEADER.pack(2**23 + 1) + b"{}",
    ],
)
def test_other_bytes_are_refused(content):
    with pytest.raises(claims.InvalidClaim):
        claims.from_bytes(content)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 2000), st.integers(0, 60))
def test_damaged_bytes_are_refused_or_read(noise, at, length):
    whole = claims.to_bytes([WHOLE])
    damaged = whole[:at] + noise + whole[at + length :]
    try:
        claims.from_bytes(damaged)
    except claims.InvalidClaim:
        return


def test_what_is_no_claim_says_which_field():
    with pytest.raises(TypeError, match=r"inputs\[0\] holds str, expected a tensor"):
        claims.to_bytes([Reconstruction(inputs=["cat"])])
    with pytest.raises((TypeError, ValueError)):
        claims.to_bytes([Reconstruction(label_counts={"a": "b"})])


@pytest.mark.parametrize(
    ("claimed", "said"),
    [
        ({"label_counts": {0: 0.98}}, "label_counts holds dict .*, in whole numbers from 0 on"),
        ({"token_counts": {0: -1}}, "token_counts holds dict .*, in whole numbers from 0 on"),
        ({"labels": torch.tensor([1.4, 2.0])}, "labels holds torch.float32 values such as 1.4"),
    ],
)
def test_numbers_of_things_are_whole(claimed, said):
    with pytest.raises(TypeError, match=said):
        plain(Reconstruction(**claimed))


def test_whole_numbers_may_be_floats():
    found = plain(Reconstruction(labels=torch.tensor([1.0, 2.0]), label_counts={1.0: 2.0}))
    assert found.labels.tolist() == [1, 2]
    assert found.labels.dtype == torch.int64
    assert found.label_counts == {1: 2}
