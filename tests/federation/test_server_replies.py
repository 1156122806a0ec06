"""What the curious server reads of a reply, and what it refuses."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from support.tiny import ask, meaning, same, scenario, sent

from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, UpdateRefused
from fedsim.federation import client
from fedsim.federation.arrays import tensor_of
from fedsim.federation.server import read_update
from fedsim.scenario.settings import Training


@pytest.fixture
def reply():
    """A good reply of client 0."""
    run = scenario()
    return ask(InlineGrid(6), run, 0)


def test_a_reply_says_what_its_arrays_mean(reply):
    update = read_update(reply, ConfigRecord(), Training())
    assert (update.kind, update.num_examples, update.steps, update.lr) == ("gradient", 4, 1, 0.1)
    assert same(update.tensors, sent(reply))


def test_an_error_is_passed_on_with_its_reason(reply):
    broken = Message(Error(code=2, reason="out of memory"), reply_to=reply)
    with pytest.raises(ClientError, match="out of memory"):
        read_update(broken, ConfigRecord(), Training())


RAY = """<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\
\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=29127, repr=<ClientAppActor object at 0x7f0b>)
  File "client.py", line 16, in train
KeyError: 'gone'

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=29127)
  File "client.py", line 17, in train
    raise RuntimeError("the file is gone,\\nand its folder") from error
RuntimeError: the file is gone,
and its folder

The above exception was the direct cause of the following exception:

\x1b[36mray::ClientAppActor.run()\x1b[39m (pid=29127)
  File "ray_actor.py", line 65, in run
    raise ClientAppException(str(ex)) from ex
flwr.clientapp.client_app.ClientAppException:
Exception ClientAppException occurred. Message: the file is gone,
and its folder'>"""


def test_of_the_traceback_of_flowers_simulation_the_exception_of_the_client_is_passed_on(reply):
    broken = Message(Error(code=0, reason=RAY), reply_to=reply)
    with pytest.raises(ClientError) as raised:
        read_update(broken, ConfigRecord(), Training())
    assert str(raised.value) == "RuntimeError: the file is gone,\nand its folder"


def test_two_array_records_are_refused(reply):
    reply.content["more"] = ArrayRecord({"w": torch.ones(1)})
    with pytest.raises(UpdateRefused, match="2 array records"):
        read_update(reply, ConfigRecord(), Training())


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "numpy.ndarray", b"\x80rubbish"),
        Array("float32", (2,), "torch.Tensor", b""),
        Array("float32", (2,), "numpy.ndarray", b"cos\nsystem\n(S'true'\ntR."),
    ],
)
def test_arrays_that_cannot_be_read_are_refused(reply, array):
    reply.content["arrays"] = ArrayRecord({"w": array})
    with pytest.raises(UpdateRefused, match="cannot be read"):
        read_update(reply, ConfigRecord(), Training())


def _claiming(shape: str) -> bytes:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00v\x00" + head.ljust(117).encode() + b"\n" + bytes(40)


@pytest.mark.parametrize("shape", ["(250000000,)", "(9,)", "(11,)", "(1000000, 1000000)", "(-10,)"])
def test_arrays_that_claim_another_size_are_refused_before_memory_is_taken(reply, shape):
    claims = Array("float32", (10,), "numpy.ndarray", _claiming(shape))
    reply.content["arrays"] = ArrayRecord({"w": claims})
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(UpdateRefused, match="cannot be read: ValueError"):
                read_update(reply, ConfigRecord(), Training())
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("what", ["records", "values"])
def test_replies_that_are_too_long_are_refused_before_they_are_read(reply, what):
    if what == "records":
        for number in range(200):
            reply.content[f"more {number}"] = MetricRecord({"a": 1.0})
    else:
        reply.content["more"] = ConfigRecord({"a": [0.0] * 1_000_001})
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(UpdateRefused, match=r"20\d records, at most 100|1000001 values"):
                read_update(reply, ConfigRecord(), Training())
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "i8"])
def test_arrays_of_another_process_are_read_as_flower_reads_them(kind, order):
    for shape in [(), (0,), (3,), (2, 3, 4)]:
        values = np.asarray(np.arange(math.prod(shape)).reshape(shape), kind, order=order)
        array = Array(values)
        assert tensor_of(array).numpy().tobytes() == array.numpy().tobytes()
        assert tensor_of(array).shape == shape


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "hessian"),
        ("steps", "many"),
        ("lr", "fast"),
        ("buffers", ["no.such.array"]),
        ("buffers", 3),
        ("momentum", [1.0]),
        ("num_examples", None),
    ],
)
def test_broken_metadata_is_refused(reply, key, value):
    told = meaning(reply)
    told.pop(key)
    if value is not None:
        told[key] = value
    reply.content[client.UPDATE_KEY] = ConfigRecord(told)
    with pytest.raises(UpdateRefused, match="broken"):
        read_update(reply, ConfigRecord(), Training())


def test_a_foreign_reply_is_read_as_weights_with_the_rate_that_was_told(reply):
    del reply.content[client.UPDATE_KEY]
    update = read_update(reply, ConfigRecord({"learning-rate": 0.3}), Training())
    assert (update.kind, update.lr, update.num_examples) == ("weights", 0.3, 4)
    assert read_update(reply, ConfigRecord({"lr": "adaptive"}), Training()).lr is None
    stated = Training(lr=0.7, momentum=0.9, local_steps=3, batch_size=5)
    update = read_update(reply, ConfigRecord(), stated)
    assert (update.lr, update.momentum, update.steps, update.num_examples) == (0.7, 0.9, 3, 15)
    stated = Training(local_epochs=2, batch_size=3)  # of 4 examples: batches of 3 and 1, twice
    update = read_update(reply, ConfigRecord(), stated)
    assert (update.steps, update.num_examples) == (4, 8)


def test_a_foreign_reply_with_a_broken_number_of_examples_is_refused(reply):
    del reply.content[client.UPDATE_KEY]
    reply.content["metrics"] = MetricRecord({"num-examples": [1, 2]})
    with pytest.raises(UpdateRefused, match="num-examples"):
        read_update(reply, ConfigRecord(), Training())


def test_a_foreign_reply_with_complex_weights_is_refused(reply):
    del reply.content[client.UPDATE_KEY]
    before = sent(reply)
    name = next(iter(before))
    reply.content["arrays"][name] = Array(np.ones(before[name].shape, np.complex64))
    update = read_update(reply, ConfigRecord(), Training())
    with pytest.raises(UpdateRefused, match="complex64, expected floating point"):
        update.check(before)
