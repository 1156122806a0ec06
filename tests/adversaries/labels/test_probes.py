"""The probes of LLG* and LLG+: whichever way they are worked out, they are autograd's."""

from collections import Counter
from typing import Any

import pytest
import torch
from support.llg_victims import attacked, victim
from torch import Tensor, nn
from torch.nn import functional

from adversaries.labels.llg.probes import by_label, class_sums, draw
from fedsim import testing
from fedsim.tasks.images import cross_entropy
from fedsim.victim import VictimModel


def small(*middle: nn.Module, head: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(2)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 12), nn.Sigmoid(), *middle, head or nn.Linear(12, 10)
    )
    return module.double()


class Transposed(nn.Module):
    """A head whose weight is (features, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 10))

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.weight


class Bypassed(nn.Module):
    """A head whose weight is used without calling the module."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Sigmoid())
        self.out = nn.Linear(12, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.linear(self.body(inputs), self.out.weight)


def smoothed(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
    return functional.cross_entropy(module(inputs), target, label_smoothing=0.1)


def summed(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
    return functional.cross_entropy(module(inputs), target, reduction="sum")


def cooled(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
    return functional.cross_entropy(module(inputs) / 2, target)


@pytest.mark.parametrize(
    ("module", "head", "loss", "way"),
    [
        (small(), "3", cross_entropy, "pooled"),
        (small(head=nn.Linear(12, 10, bias=False)), "3", cross_entropy, "pooled"),
        (small(head=Transposed()), "3", cross_entropy, "pooled"),
        (small(nn.BatchNorm1d(12), nn.ReLU()), "5", cross_entropy, "batched"),
        (small(nn.BatchNorm1d(12), nn.ReLU()).eval(), "5", cross_entropy, "pooled"),
        (small(nn.Dropout(0.5)), "4", cross_entropy, "batched"),
        (Bypassed().double(), "out", cross_entropy, "autograd"),
        (small(), "3", smoothed, "autograd"),
        (small(), "3", summed, "autograd"),
        (small(), "3", cooled, "autograd"),
    ],
    ids=[
        *("plain", "no-bias", "transposed", "batchnorm", "batchnorm-eval", "dropout"),
        *("bypassed", "label-smoothing", "summed", "temperature"),
    ],
)
def test_probes_are_those_of_autograd(module, head, loss, way, monkeypatch):
    model = VictimModel(module, head=head, loss=loss)
    images = testing.batch(40, 5)
    held = by_label(torch.arange(40) % 10, 10)
    rng = torch.Generator().manual_seed(0)
    probes = [draw(held, size, 3, rng) for size in (4, 2)]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    state = torch.random.get_rng_state()
    inputs = images.inputs.double()
    found, how = class_sums(model, 10, inputs, probes, seed=1)
    monkeypatch.setattr("adversaries.labels.llg.probes._agree", lambda *_: False)
    expected, slow = class_sums(model, 10, inputs, probes, seed=1)
    assert (how, slow) == (way, "autograd")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape == (30, 10)
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("variant", ["llg*", "llg+"])
@pytest.mark.parametrize("model", ["cnn", "lenet", "resnet20"], ids=str)
def test_attacks_agree_with_autograd_on_the_architectures_of_the_paper(variant, model, monkeypatch):
    seen, _ = victim(0, 4, model=model)
    given = {"batches": 2, "dummy": "random"}
    fast = attacked(seen, variant, **given)

    monkeypatch.setattr("adversaries.labels.llg.probes._agree", lambda *_: False)
    exact = attacked(seen, variant, **given)
    assert exact.diagnostics["probes"] == "autograd" != fast.diagnostics["probes"]
    assert fast.diagnostics["impact"] == pytest.approx(exact.diagnostics["impact"], rel=1e-5)
    assert torch.allclose(fast.label_scores, exact.label_scores, atol=1e-3)
    assert fast.label_counts == exact.label_counts


def test_batches_are_cut_from_permutations():
    held = {2: torch.tensor([5, 6, 7]), 9: torch.tensor([1])}
    probes = draw(held, 2, 3, torch.Generator().manual_seed(0))
    assert probes.labels.tolist() == [2, 2, 2, 9, 9, 9]
    assert probes.members.shape == (6, 2)
    assert Counter(probes.members[:3].flatten().tolist()) == {5: 2, 6: 2, 7: 2}
    assert set(probes.members[3:].flatten().tolist()) == {1}
