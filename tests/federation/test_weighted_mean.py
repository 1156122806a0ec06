"""FedSGD's mean is Flower's, bit for bit."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedsim.federation.arrays import tensor_record
from fedsim.federation.fedsgd import BLOCK, weighted_mean


def contents(*kinds):
    """Replies whose arrays have these dtypes, in turn."""
    rng = np.random.default_rng(0)
    made = []
    for kind in kinds:
        values = {"w": rng.normal(size=(5, 3)).astype(kind), "scale": np.asarray(-0.0, kind)}
        values["large"] = rng.normal(size=(BLOCK // 100, 250)).astype(kind)
        tensors = {name: torch.from_numpy(value) for name, value in values.items()}
        metrics = MetricRecord({"n": int(rng.integers(1, 30))})
        made.append((tensors, metrics))
    return made


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    "kinds", [["f4"] * 7, ["f2"] * 3, ["f8"], ["i8", "i8"], ["f4", "f8", "f4"], ["i8", "f4", "i8"]]
)
def test_the_mean_has_the_bits_of_flowers(kinds, own):
    record = tensor_record if own else ArrayRecord
    replies = [
        RecordDict({"arrays": record(tensors), "metrics": metrics})
        for tensors, metrics in contents(*kinds)
    ]
    sent = [dict(tensors) for tensors, _ in contents(*kinds)]
    theirs = aggregate_arrayrecords(replies, "n").to_torch_state_dict()
    ours = weighted_mean(replies, "n")
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert ours[name].dtype == value.dtype
        assert ours[name].numpy().tobytes() == value.numpy().tobytes()
    for reply, tensors in zip(replies, sent, strict=True):  # which are left as they were
        for name, value in reply["arrays"].to_torch_state_dict().items():
            assert torch.equal(value, tensors[name])
