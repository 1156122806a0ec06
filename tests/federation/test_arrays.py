"""Arrays that are encoded only where they leave the process read as those of Flower."""

import copy
import pickle

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from support.tiny import ask, initial, scenario, sent

from fedsim.engine.inline import InlineGrid
from fedsim.engine.ray.transfer import pack, unpack
from fedsim.federation.arrays import TensorArray, tensor_of, tensor_record
from fedsim.federation.session import Session
from fedsim.scenario.built import build


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(4, 3).T,
        torch.tensor(7),
        torch.zeros(0, 2),
        torch.randn(5, dtype=torch.float64),
        torch.tensor([1.5, float("nan"), float("inf")]).half(),
    ],
)
def test_an_array_of_a_tensor_is_that_of_flower(tensor):
    ours, theirs = TensorArray(tensor), Array(tensor.contiguous().numpy())
    assert (ours.dtype, ours.shape, ours.stype) == (theirs.dtype, theirs.shape, theirs.stype)
    assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    assert ours.data == theirs.data
    assert ours.object_id == theirs.object_id
    pickled = [pickle.loads(pickle.dumps(ours, protocol)) for protocol in (4, 5)]  # noqa: S301
    for copied in (*pickled, unpack(pack(ours)), copy.deepcopy(ours)):
        assert type(copied) is TensorArray
        assert not np.shares_memory(copied._values, ours._values)
        assert copied.data == theirs.data


def test_what_a_reader_changes_stays_with_it():
    array = TensorArray(torch.zeros(3))
    array.numpy()[:] = 1
    assert not array.numpy().any()
    array.data = Array(np.ones(3, dtype=np.float32)).data
    assert array.numpy().tolist() == [1, 1, 1]


def test_an_array_of_this_process_is_looked_at_without_a_copy_and_one_of_another_with_one():
    ours = TensorArray(torch.ones(3))
    assert tensor_of(ours).data_ptr() == ours.values.ctypes.data
    theirs = pickle.loads(pickle.dumps(ours))  # noqa: S301 - our own
    theirs.values.flags.writeable = False  # as in Ray's memory
    assert tensor_of(theirs).data_ptr() != theirs.values.ctypes.data
    assert tensor_of(theirs).tolist() == [1, 1, 1]
    ours.data = Array(np.zeros(3, dtype=np.float32)).data
    assert tensor_of(ours).tolist() == ours.values.tolist() == [0, 0, 0]


def test_replies_are_not_encoded_unless_bytes_are_read(monkeypatch):
    encoded = []
    monkeypatch.setattr(
        TensorArray, "data", property(lambda self: encoded.append(1) or Array(self.numpy()).data)
    )
    run = scenario()
    reply = ask(InlineGrid(6), run, 2)
    tensors = sent(reply)
    assert not encoded
    (record,) = reply.content.array_records.values()
    whole = ArrayRecord(dict(record))  # which Flower makes of them
    assert len(encoded) == len(tensors)
    assert all(torch.equal(whole.to_torch_state_dict()[k], v) for k, v in tensors.items())


def test_tied_weights_have_what_was_sent():
    run = scenario()
    session = Session(build(run))
    module = session.module
    module.again = torch.nn.Linear(*reversed(module.head.weight.shape))
    module.again.weight = module.head.weight
    session._initial = {k: v.clone() for k, v in module.state_dict().items()}
    values = {k: v + 1 for k, v in initial(run).to_torch_state_dict().items()}
    session.load(tensor_record(values))
    assert torch.equal(module.head.weight, values["head.weight"])
