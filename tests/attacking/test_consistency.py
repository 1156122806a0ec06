"""A client's file cannot make the server repeat a training without end."""

import pytest
import torch
from torch import nn

from fedsim.attacking.consistency import consistency
from fedsim.runs import truth_store
from fedsim.runs.truth import Seen
from fedsim.tasks.classification import cross_entropy

MILLION = 1_000_000


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ({}, "fits"),
        ({"kind": "LBFGS", "settings": {"lr": 0.1, "max_iter": 10**9}}, "1,000,000,000 gradients"),
        ({"kind": "LBFGS", "changes": {0: {"max_iter": 10**9}}}, "1,000,000,000 gradients"),
        ({"rates": (0.1,) * MILLION, "ends": (1,) * MILLION}, "1,000,000 gradients"),
    ],
)
def test_a_training_without_end_is_not_repeated(shown, found, tmp_path, monkeypatch):
    assert found in said_of(shown, torch.float32, tmp_path, monkeypatch)


def test_weights_of_integers_are_said_not_to_be_compared(tmp_path, monkeypatch):
    said = said_of({}, torch.int8, tmp_path, monkeypatch)
    assert said == "not checked: the array weight has no floating-point numbers (torch.int8)"


def said_of(shown, dtype, tmp_path, monkeypatch):
    """What is said of one step of SGD, its training described as `shown`, its reply in `dtype`."""
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))
    net = nn.Linear(4, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    inputs, labels = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    cross_entropy(net, inputs, labels).backward()
    optimizer.step()
    one = {"steps": 1, "kind": "SGD", "optimizer": "sgd", "groups": 1, "optimizers": 1}
    first = {"settings": {"lr": 0.1}, "rates": (0.1,), "sizes": (5,), "ends": (1,)}
    seen = Seen(**{**one, **first, "trained": tuple(before), **shown})
    tensors = {"inputs.0": inputs, "labels.0": labels, "rng.0": torch.get_rng_state()}
    after = {f"after.{name}": value.to(dtype) for name, value in net.state_dict().items()}
    truth_store.write("a" * 32, seen, {**tensors, **after})
    file = truth_store.find("a" * 32)
    return consistency(file, before, lambda: nn.Linear(4, 3), cross_entropy, file.truth(3))
