"""FedSGD's mean is Flower's, bit for bit."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedsim.federation.arrays import LocalArray, tensor_record
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


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_any_order_of_memory_are_added(order):
    one, other = (np.full((4, BLOCK), value, "f4", order=order) for value in (1, 3))
    replies = [
        RecordDict({"arrays": ArrayRecord([array]), "metrics": MetricRecord({"n": 1})})
        for array in (one, other)
    ]
    for place in (0, 1):
        values = replies[place]["arrays"]
        values["0"] = _Given((one, other)[place])
    assert torch.equal(weighted_mean(replies, "n")["0"], torch.full((4, BLOCK), 2.0))


class _Given(LocalArray):
    """An array whose values are laid out in memory as they were given."""

    def __init__(self, values):
        super().__init__(values)
        self._given = values

    @property
    def values(self):
        return self._given


def test_shapes_that_do_not_go_together_are_refused_as_flowers_mean_does():
    replies = [
        RecordDict(
            {"arrays": ArrayRecord({"w": torch.ones(shape)}), "metrics": MetricRecord({"n": 1})}
        )
        for shape in ((2, 2 * BLOCK), (4 * BLOCK,))
    ]
    for mean in (aggregate_arrayrecords, weighted_mean):
        with pytest.raises(ValueError, match="broadcast"):
            mean(replies, "n")
