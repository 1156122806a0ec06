"""Clients of another project that train a recogniser with CTC, with their own model and loader."""

from functools import partial

import pytest
import torch
from support.watched import one_step, values
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from adversaries import DLG, RLG, CTCMatching, FirstFrames, SpanDecoding
from fedsim import diagnose, reveal

pytestmark = pytest.mark.usefixtures("unreported")

FRAMES, FEATURES, LABELS = 24, 12, 11


class Recogniser(nn.Module):
    """Windows of three frames, a hidden layer, and logits of each frame."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3 * FEATURES, 96)
        self.out = nn.Linear(96, LABELS)

    def forward(self, frames):
        around = functional.pad(frames, (0, 0, 1, 1)).unfold(1, 3, 1).transpose(2, 3).flatten(2)
        return self.out(torch.tanh(self.first(around)))


class Halved(nn.Module):
    """A convolution over time of stride 2, so that there are half as many logits as frames."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(FEATURES, 32, 3, stride=2, padding=1)
        self.out = nn.Linear(32, LABELS)

    def forward(self, frames):
        return self.out(torch.relu(self.first(frames.transpose(1, 2))).transpose(1, 2))


def utterances(client, size=1, frames=FRAMES):
    """A client's utterances: frames (B, T, F), and label sequences padded with 0."""
    rng = torch.Generator().manual_seed(client)
    spoken = [torch.randint(1, LABELS, (5 - n % 2,), generator=rng) for n in range(size)]
    return torch.randn(size, frames, FEATURES, generator=rng), pad_sequence(spoken, True)


def torchs_ctc(logits, labels, divided=True):
    counts = (labels > 0).sum(dim=1)
    scores = logits.log_softmax(dim=2)
    lengths = torch.full((len(logits),), logits.shape[1])
    how = "mean" if divided else "sum"
    return functional.ctc_loss(scores.transpose(0, 1), labels, lengths, counts, reduction=how)


def audited(folder, *adversaries, make=Recogniser, size=1, length=FRAMES, loss=torchs_ctc, **more):
    """The rows of an audit of clients that take one step of SGD."""

    def revealed(net, client):
        ((frames, spoken),) = reveal([utterances(client, size, length)])
        return loss(net(frames), spoken), size

    return one_step(folder, make, revealed, *adversaries, **more)


def test_frames_and_labels_come_back(tmp_path):
    found = audited(
        tmp_path / "run", FirstFrames(), RLG(), DLG(), SpanDecoding(),
        threat={"grants": "full"}, record={"keep": "all"},
    )  # fmt: skip
    by = {row["label"]: (row["status"], row["truth"], row["checked"]) for row in found}
    assert by == {
        "first-frames": ("ok", "revealed", "fits"),
        "rlg": ("ok", "revealed", "fits"),
        "dlg": ("denied", "revealed", "fits"),
        "span-decoding": ("failed", "revealed", "fits"),
    }
    assert max(values(found, "first-frames", "mae")) < 1e-3
    chance = [float(row["baseline"]) for row in found if row["metric"] == "label_f1"]
    assert 0 < max(chance) < 0.6
    place = tmp_path / "run/artifacts/r0001-c0001"
    assert (place / "first-frames/reconstruction-1.png").exists()
    assert {*map(int, (place / "rlg/original.txt").read_text().split())} == {
        *utterances(1)[1].flatten().tolist()
    }
    assert {*diagnose(tmp_path / "run", model=Recogniser)["label"]} >= {"first-frames", "rlg"}


def test_frames_are_matched_from_the_gradient(tmp_path):
    found = audited(
        tmp_path / "run", CTCMatching(layers="all", iterations=80, restarts=3), length=8,
        threat={"grants": "full", "victims": [1]},
    )  # fmt: skip
    assert {(row["status"], row["checked"]) for row in found} == {("ok", "fits")}
    assert values(found, "ctc-matching", "mae")[0] < 0.1


def test_models_that_shorten_utterances_fit(tmp_path):
    found = audited(tmp_path / "run", RLG(), make=Halved, size=3)
    assert {(row["status"], row["checked"]) for row in found} == {("ok", "fits")}


def test_a_loss_that_is_not_the_assumed_one_is_named(tmp_path):
    with pytest.warns(UserWarning, match="CTC not divided by the number of labels"):
        found = audited(tmp_path / "run", RLG(), loss=partial(torchs_ctc, divided=False))
    assert {row["status"] for row in found} == {"unverified"}
