"""What `compute` of somebody's metric returns becomes a plain number, or a sentence."""

import pytest
import torch

from fedsim import testing
from fedsim.errors import PluginError
from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Truth


def metric(value):
    class Worst(Metric):
        """The worst one."""

        name = "worst"
        fields = ("labels",)
        shown = Measure("Worst", phrase="worst {value}")

        def compute(self, claimed, truth, spec):
            return value

    return Worst()


def score(value):
    labels = torch.tensor([1])
    claimed, truth = Reconstruction(labels=labels), Truth(labels=labels)
    return metric(value).score(claimed, truth, testing.SPEC)


@pytest.mark.parametrize("value", [torch.tensor(0.5), torch.tensor([0.5]), 0.5])
def test_a_tensor_with_one_value_is_a_number(value):
    assert type(score(value)) is float
    assert score(value) == 0.5


@pytest.mark.parametrize("value", [None, "0.5", torch.zeros(2), [0.5]])
def test_what_is_no_number_is_named(value):
    with pytest.raises(PluginError, match=r"compute of 'worst' returned .*, expected a number"):
        score(value)
