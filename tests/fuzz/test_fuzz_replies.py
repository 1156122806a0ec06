"""Hostile replies: they cost their client its rows of the round, and nobody else anything."""

import functools
import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import fuzz, refused
from support.tiny import scenario, timeless

from fedsim.engine import inline
from fedsim.engine.simulate import simulate
from fedsim.federation.client import answers
from fedsim.federation.grid import CLIENT_KEY, UPDATE_KEY

LIAR = 1002
"""The node that lies."""

DTYPES = ["float32", "<f4", ">f8", "float16", "int8", "bool", "object", "complex64", "U3", "V8", ""]
SHAPES = st.lists(st.sampled_from([0, 1, 3, 10, 64, 2**31, 2**62, -1]), max_size=4).map(tuple)
KEYS = st.sampled_from(["arrays", "metrics", UPDATE_KEY, CLIENT_KEY, "more", "", "\ud800"])
INTEGERS = st.integers(-(2**63), 2**63 - 1)
SCALARS = INTEGERS | st.floats() | st.sampled_from([0, 1, 4, -1])
CONFIGS = st.one_of(
    SCALARS, st.booleans(), st.text(max_size=9), st.binary(max_size=9),
    st.lists(st.text(max_size=5), max_size=3), st.lists(st.floats(), max_size=3),
)  # fmt: skip


def _npy(head: str, rest: bytes) -> bytes:
    text = head.encode("latin-1", "replace")
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + rest


@st.composite
def arrays(draw) -> Array:
    """An array whose bytes are noise, or numpy's with a head that need not be true."""
    kind, shape, dtype = draw(st.integers(0, 3)), draw(SHAPES), draw(st.sampled_from(DTYPES))
    if kind == 0:
        data = draw(st.binary(max_size=60))
    elif kind == 1:
        head = f"{{'descr': '{dtype}', 'fortran_order': {draw(st.booleans())}, 'shape': {shape}, }}"
        data = _npy(head, draw(st.binary(max_size=60)))
    elif kind == 2:
        data = _npy(draw(st.text(max_size=40)), b"")
    else:
        values = np.full((3, 2), draw(st.sampled_from([0.0, float("nan"), 1e30])), np.float32)
        return Array(values)
    return Array(dtype, shape, draw(st.sampled_from(["numpy.ndarray", "pickle", ""])), data)


@st.composite
def lies(draw):
    """A change of a reply's content."""
    what = draw(st.sampled_from(["array", "drop", "record", "metric", "update", "client", "error"]))
    key, place = draw(KEYS), draw(st.integers(0, 5))
    array, value, config = draw(arrays()), draw(SCALARS), draw(CONFIGS)
    field = draw(
        st.sampled_from(["num-examples", "loss", "kind", "steps", "lr", "buffers", "num_examples"])
        | st.sampled_from(["client", "remembers", "optimizer", "reduction", "momentum", "x"])
    )

    def change(content: RecordDict) -> None:
        if what == "array":
            names = list(content["arrays"])
            content["arrays"][names[place % len(names)]] = array
        elif what == "drop":
            content.pop(list(content)[place % len(content)])
        elif what == "record":
            kinds = [ArrayRecord({"w": array}), MetricRecord({field: value})]
            content[key] = [*kinds, ConfigRecord({field: config})][place % 3]
        elif what == "metric":
            content["metrics"][field] = [value] * place if place > 2 else value
        else:
            content[UPDATE_KEY if what == "update" else CLIENT_KEY][field] = config

    return None if what == "error" else change


@functools.cache
def run():
    """Three clients, one round; a client's failure is its own."""
    return scenario(
        training={"clients": 3, "clients_per_round": 3, "rounds": 1, "on_failure": "drop"}
    )


def rows(folder: Path) -> list[dict[str, str]]:
    return [row for row in timeless(folder) if row["client"] != "2"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("honest") / "run"
    simulate(run(), folder)
    return rows(folder)


@given(lied=st.lists(lies(), min_size=1, max_size=3))
@fuzz
def test_a_hostile_reply_costs_its_own_rows(lied, expected):
    def hostile(messages, contexts):
        for message, reply in zip(messages, answers(messages, contexts), strict=True):
            if reply.metadata.src_node_id != LIAR:
                yield reply
                continue
            for change in lied:
                if change is None:
                    yield Message(Error(code=7, reason="\ud800" * 9), reply_to=message)
                    break
                try:
                    change(reply.content)
                except (KeyError, TypeError, ValueError, UnicodeError, IndexError):
                    continue  # Flower has no such record
            else:
                yield reply

    with tempfile.TemporaryDirectory() as folder, patch.object(inline, "answers", hostile):
        out = Path(folder) / "run"
        why = refused(lambda: simulate(run(), out))
        assert not why
        assert rows(out) == expected
