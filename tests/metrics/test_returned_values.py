"""What `compute` of somebody's metric returns becomes a number, and what it changes is its own."""

import pytest
import torch

from fedsim import testing
from fedsim.errors import PluginError
from fedsim.metric import Measure, Metric
from fedsim.metrics import applicable
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


def test_what_a_metric_changes_no_other_metric_is_given():
    class Spoils(type(metric(0.5))):
        """Sorts and scales in place."""

        name = "spoils"

        def compute(self, claimed, truth, spec):
            assert claimed.inputs[0].mul_(0).sum() == 0
            claimed.attributes["speaker"][0].clear()
            return truth.labels.fill_(7).float().mean()

    inputs, labels = [torch.ones(3)], torch.tensor([1])
    claimed = Reconstruction(inputs=inputs, labels=labels, attributes={"speaker": [{"ann": 1.0}]})
    truth = Truth(labels=labels)
    assert Spoils().score(claimed, truth, testing.SPEC) == 7
    assert truth.labels.tolist() == [1]
    assert claimed.inputs[0].tolist() == [1, 1, 1]
    assert claimed.attributes == {"speaker": [{"ann": 1.0}]}


def test_what_suits_raises_is_said_in_a_sentence():
    class Choosy(type(metric(0.5))):
        """Knows no answer."""

        name = "choosy"

        def suits(self, spec):
            raise KeyError("size")

    with pytest.raises(PluginError, match="choosy: suits raised KeyError: 'size'"):
        applicable({"labels"}, testing.SPEC, [Choosy()])
