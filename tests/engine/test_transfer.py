"""What is packed for another process comes out as it went in."""

import pickle

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsim.engine.ray.transfer import ALIGNED, pack, unpack
from fedsim.federation.arrays import tensor_record


def test_records_are_unpacked_as_they_were_packed():
    tensors = {
        "weights": torch.randn(3, 5),
        "steps": torch.tensor(7),
        "none": torch.zeros(0, 2),
        "flags": torch.tensor([True, False, True]),
        "halves": torch.arange(5, dtype=torch.float16),
    }
    record = RecordDict(
        {
            "arrays": tensor_record(tensors),
            "encoded": ArrayRecord(tensors),
            "metrics": MetricRecord({"loss": 0.5, "counts": [1, 2]}),
            "config": ConfigRecord({"name": "a", "raw": b"b"}),
        }
    )
    packed = pack([record, record])
    assert len(packed.sizes) == len(tensors)  # once, and what is encoded is in the head
    first, second = unpack(packed)
    assert first is second
    for key in ("arrays", "encoded"):
        found = first[key].to_torch_state_dict()
        assert list(found) == list(tensors)
        for name, value in tensors.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)
    assert (first["metrics"], first["config"]) == (record["metrics"], record["config"])


@pytest.mark.parametrize("array", [np.asfortranarray(np.ones((3, 4))), np.arange(12)[::3]])
def test_arrays_of_any_order_in_memory_are_packed(array):
    (found,) = unpack(pack([array]))
    assert np.array_equal(found, array)


def test_arrays_begin_where_their_types_may_begin_and_are_not_copied_again():
    packed = pack([np.ones(3, np.uint8), np.ones(2), np.ones(1, np.complex128)])
    begin = packed.block.ctypes.data
    for array in unpack(packed):
        assert (array.ctypes.data - begin) % ALIGNED == 0
        assert np.shares_memory(array, packed.block)


def test_the_replies_of_a_group_are_one_array_for_ray():
    replies = [tensor_record({str(k): torch.randn(10) for k in range(8)}) for _ in range(50)]
    buffers = []
    pickle.dumps(pack(replies), protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 1
