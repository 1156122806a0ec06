"""Odd batches and models of other projects: nested, with NaN, and a head nobody can tell."""

import math

import pytest
import torch
from support.watched import one_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import DLG, LLG
from fedsim import reveal
from fedsim.errors import ScenarioError
from fedsim.federation.offered import Parts

pytestmark = pytest.mark.usefixtures("unreported")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x.flatten(1))))


class Filled(Net):
    """It takes a missing pixel, which is NaN, for zero."""

    def forward(self, x):
        return super().forward(x.nan_to_num())


class Widened(Net):
    """It computes in float32, whatever it is given."""

    def forward(self, x):
        return super().forward(x.float())


class Headless(nn.Module):
    """Its logits come from no linear layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 4))

    def forward(self, x):
        return x.flatten(1) @ self.weight


def examples(client, *, missing=False):
    rng = torch.Generator().manual_seed(client)
    images = torch.rand(2, 1, 4, 4, generator=rng)
    images[0, 0, 0, 0] = math.nan if missing else 0.5
    return images, torch.tensor([client, client + 1])


def audited(folder, batch, images_of, make=Net):
    """What is said of two clients that take one step on a batch."""

    def revealed(net, client):
        (shown,) = reveal([batch(client)])
        images, labels = images_of(shown)
        return nn.functional.cross_entropy(net(images), labels), len(labels)

    attacks = LLG(), DLG(iterations=3, restarts=0)
    found = one_step(folder, make, revealed, *attacks, threat={"grants": "full"})
    return {(row["client"], row["status"], row["truth"], row["checked"]) for row in found}


SOUND = {(client, "ok", "revealed", "fits") for client in ("0", "1")}


def pair(client):
    images, labels = examples(client)
    return (images, torch.zeros(2, 3)), labels


def keyed(client):
    images, labels = examples(client)
    return {"data": {"image": images}, "label": labels}


@pytest.mark.parametrize(
    ("batch", "images_of"),
    [
        (pair, lambda shown: (shown[0][0], shown[1])),
        (keyed, lambda shown: (shown["data"]["image"], shown["label"])),
    ],
)
def test_nested_batches_are_revealed(batch, images_of, tmp_path):
    assert audited(tmp_path / "run", batch, images_of) == SOUND


def test_inputs_with_nan_are_attacked_where_the_model_takes_them(tmp_path):
    def missing(client):
        return examples(client, missing=True)

    assert audited(tmp_path / "run", missing, lambda shown: shown, Filled) == SOUND


def test_inputs_in_bfloat16_have_a_baseline(tmp_path):
    def loss(net, client):
        images, labels = examples(client)
        ((shown, labels),) = reveal([(images.bfloat16(), labels)])
        return nn.functional.cross_entropy(net(shown), labels), 2

    found = one_step(tmp_path / "run", Widened, loss, LLG())
    assert {row["error"] for row in found} == {""}
    assert all(row["baseline"] for row in found)


def test_a_client_whose_inputs_make_its_weights_nan_is_refused_alone(tmp_path):
    def one_missing(client):
        return examples(client, missing=client == 0)

    assert audited(tmp_path / "run", one_missing, lambda shown: shown) == {
        ("0", "failed", "absent", "not checked: the client revealed nothing"),
        ("1", "ok", "revealed", "fits"),
    }


def test_a_head_that_nobody_can_tell_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ScenarioError, match="none of its linear layers has 4 outputs"):
        audited(tmp_path / "run", examples, lambda shown: shown, Headless)


def test_a_head_that_is_called_alone_is_named(tmp_path):
    def loss(net, client):
        ((images, labels),) = reveal([examples(client)])
        with torch.no_grad():
            features = torch.sigmoid(net.hidden(images.flatten(1)))
        return nn.functional.cross_entropy(net.out(features), labels), 2

    with pytest.raises(ScenarioError, match=r"inputs \(8,\).*part 'out' takes.*requires_grad_"):
        one_step(tmp_path / "run", Net, loss, LLG())


def test_a_loader_of_single_examples_with_real_labels_does_not_stop_training(tmp_path):
    def loss(net, client):
        row, target = torch.rand(1, 6), torch.tensor([float(client)])
        ((x, y),) = reveal(DataLoader(TensorDataset(row, target), batch_size=None))
        return nn.functional.binary_cross_entropy_with_logits(net(x[None])[0], y[None]), 1

    with pytest.warns(UserWarning, match="has no class labels"):
        found = one_step(tmp_path / "run", lambda: nn.Sequential(nn.Linear(6, 1)), loss, LLG())
    assert {(row["status"], row["truth"]) for row in found} == {("ok", "partial")}


@pytest.mark.parametrize("batch", [(torch.arange(4),), [torch.eye(2)[:, :1]], ()])
def test_the_only_part_of_a_batch_is_not_taken_for_its_labels(batch):
    parts = Parts.of(batch, None)
    assert parts.labels is None
    assert len(parts.tensors) == len(batch)
