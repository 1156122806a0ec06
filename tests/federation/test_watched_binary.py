"""Models with one output: two classes with labels 0.0 and 1.0, and numbers that are no classes."""

import pytest
import torch
from support.watched import one_step, values
from torch import nn

from adversaries import DLG, LLG, RLG, BiasSigns, FirstLinear, TokenLeak
from fedsim import diagnose, reveal

pytestmark = pytest.mark.usefixtures("unreported")


class Net(nn.Module):
    """A network of one logit for rows of a table, (B, 1)."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(12, 24), nn.Linear(24, 1)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x)))


class Flat(Net):
    """The same with logits (B,)."""

    def forward(self, x):
        return super().forward(x)[:, 0]


def binary(module, inputs, target, **more):
    """The project's own loss."""
    return nn.functional.binary_cross_entropy_with_logits(module(inputs)[:, 0], target.float())


def audited(folder, make, targets, loss_of, *adversaries, **settings):
    """The rows of an audit of two clients with one row of a table each."""

    def loss(net, client):
        row = torch.randn(1, 12, generator=torch.Generator().manual_seed(client))
        ((x, y),) = reveal([(row, torch.tensor([targets[client]]))])
        logits = net(x)
        return loss_of(logits, y.view_as(logits)), 1

    return one_step(folder, make, loss, *adversaries, threat={"grants": "white-box"}, **settings)


@pytest.mark.parametrize(
    ("make", "settings"), [(Net, {}), (Flat, {}), (Net, {"loss": binary})], ids=["1", "flat", "own"]
)
def test_one_logit_is_attacked_as_two_classes(make, settings, tmp_path):
    attacks = LLG(), RLG(), BiasSigns(), DLG(iterations=60, restarts=0)
    loss = nn.functional.binary_cross_entropy_with_logits
    settings["record"] = {"keep": "all"}
    found = audited(tmp_path / "run", make, (0.0, 1.0), loss, *attacks, **settings)
    assert {(r["status"], r["truth"], r["checked"]) for r in found} == {("ok", "revealed", "fits")}
    for label in ("llg", "bias-signs", "dlg"):
        assert values(found, label, "label_exact") == [1.0, 1.0]
    assert values(found, "rlg", "label_recall") == [1.0, 1.0]
    assert values(found, "dlg", "row_exact") == [1.0, 1.0]
    assert {r["baseline"] for r in found if r["metric"] in ("asr", "row_exact")} - {""}
    measured = diagnose(tmp_path / "run", model=make, loss=settings.get("loss"))
    assert measured["imbalance"].astype(float).max() < 1e-6
    assert not measured["reasons"].str.contains("noise|imbalance").any()


@pytest.mark.filterwarnings("ignore:.*no class labels")
def test_rows_of_a_regression_are_attacked_beside_a_guess(tmp_path):
    loss = nn.functional.mse_loss
    found = audited(tmp_path / "run", Net, (3.5, -2.5), loss, FirstLinear())
    assert {(r["status"], r["truth"], r["error"]) for r in found} == {("ok", "partial", "")}
    assert {r["checked"] for r in found} == {
        "not checked: its labels are missing, or numbers that are no classes"
    }
    assert values(found, "first-linear", "row_exact") == [1.0, 1.0]
    assert "" not in {r["baseline"] for r in found}


class Bag(nn.Module):
    """The mean of word embeddings, and one logit."""

    def __init__(self):
        super().__init__()
        self.words, self.out = nn.EmbeddingBag(50, 16, padding_idx=0), nn.Linear(16, 1)

    def forward(self, ids):
        return self.out(self.words(ids))


@pytest.mark.filterwarnings("ignore:.*no class labels")
@pytest.mark.parametrize(("targets", "truth"), [((0.0, 1.0), "revealed"), ((3.5, -2.5), "partial")])
def test_texts_are_attacked_beside_a_guess_whatever_the_labels_are(targets, truth, tmp_path):
    def loss(net, client):
        ids = torch.tensor([[5 + client, 9, 20, 31 + client]])
        ((x, y),) = reveal([(ids, torch.tensor([[targets[client]]]))])
        criterion = nn.functional.mse_loss
        if truth == "revealed":
            criterion = nn.functional.binary_cross_entropy_with_logits
        return criterion(net(x), y), 1

    found = one_step(tmp_path / "run", Bag, loss, TokenLeak(), threat={"grants": "white-box"})
    assert {(r["status"], r["truth"], r["error"]) for r in found} == {("ok", truth, "")}
    assert values(found, "token-leak", "token_f1") == [1.0, 1.0]
    assert "" not in {r["baseline"] for r in found}
