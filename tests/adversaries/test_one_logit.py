"""A model of one logit, as one's own project may train it, has attacks as one of two classes."""

import pytest
import torch
from torch import nn

from adversaries import DLG, LLG, RGAP, SPEAR, ExactBatch, FeatureSeparation
from fedsim import testing
from fedsim.attacking.classifier import Classifier
from fedsim.records import Batch
from fedsim.victim import VictimModel


def observed(activation, labels):
    """An observation of these labels behind a perceptron with one logit, and the inputs."""

    def make():
        module = nn.Sequential()
        for name, part in (
            ("body", nn.Linear(16, 64)),
            ("behind", activation()),
            ("head", nn.Linear(64, 1)),
        ):
            module.add_module(name, part)
        return module

    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = Classifier.of(make, torch.rand(16))
        model = VictimModel(found.make(), head=found.head, loss=found.loss)
        inputs, target = torch.rand(len(labels), 16), torch.tensor(labels)
        public = Batch(torch.rand(20, 16), torch.arange(20) % 2)
    gradient = {name: one.detach() for name, one in model.gradient(inputs, target).items()}
    seen = testing.observation(
        gradient=gradient,
        model=model,
        spec=found.spec,
        num_examples=len(labels),
        auxiliary=public,
    )
    return seen, inputs


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize(
    ("attack", "activation"),
    [
        (RGAP(), nn.Sigmoid),
        (SPEAR(), nn.ReLU),
        (LLG(), nn.Sigmoid),
        (LLG(variant="llg*"), nn.Sigmoid),
        (LLG(variant="llg+"), nn.Sigmoid),
        (ExactBatch(), nn.Sigmoid),
        (FeatureSeparation(), nn.Sigmoid),
        (DLG(iterations=60), nn.Sigmoid),
    ],
    ids=["r-gap", "spear", "llg", "llg*", "llg+", "exact-batch", "feature-separation", "dlg"],
)
def test_the_label_and_the_input_of_one_example(attack, activation, label):
    seen, inputs = observed(activation, [label])
    claimed = attack.reconstruct(seen, testing.job())
    assert claimed.labels.tolist() == [label]
    if claimed.inputs is not None:
        assert float((claimed.inputs[0] - inputs[0]).square().mean()) < 1e-6


def test_the_labels_of_a_batch():
    seen, inputs = observed(nn.ReLU, [0, 1, 1])
    claimed = SPEAR().reconstruct(seen, testing.job())
    assert sorted(claimed.labels.tolist()) == [0, 1, 1]
    assert float(torch.cdist(inputs, torch.stack(list(claimed.inputs))).amin(dim=1).max()) < 1e-3
