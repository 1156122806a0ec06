"""HFGM on own recognisers whose parts have the names of DeepSpeech's, but another shape."""

import pytest
import torch
from support.recognised import FEATURES, SAID, recogniser, voice
from torch import nn

from adversaries.speech.hfgm.frame_changes import HeadOnly, Whole
from adversaries.speech.padded_utterances import ignores_padding
from fedsim.victim import VictimModel


class OverTime(nn.Module):
    """A convolution over time, of one utterance or several."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.over = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, values):
        return self.over(values.transpose(-1, -2)).transpose(-1, -2)


class OfBatches(nn.Module):
    """Batch normalisation, which needs a batch of utterances."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, values):
        return self.norm(values.transpose(1, 2)).transpose(1, 2)


class EverySecond(nn.Module):
    """Every second frame, so that there are fewer logits than frames."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def forward(self, values):
        return values[..., ::2, :]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("dense", OverTime),
        ("joint", OverTime),
        ("dense", OfBatches),
        ("joint", OfBatches),
        ("joint", EverySecond),
    ],
)
def test_a_recogniser_of_another_shape_is_run_whole(part, kind):
    model, frames = recogniser(), voice(0, 20)
    layers = getattr(model.module, part)
    width = next(one for one in layers[::-1] if isinstance(one, nn.Linear)).out_features
    layers.append(kind(width))
    model.module.eval()
    rng = torch.Generator().manual_seed(1)
    at, moves = torch.tensor([0, 7, 19]), torch.randn(3, FEATURES, generator=rng)
    tried = HeadOnly(model.copy(), SAID, ["head.weight"])
    slow = Whole(model.copy(), SAID, ["head.weight"])
    for one in (tried, slow):
        one.move_to(frames)
    (ours,) = tried.changed(at, moves)
    expected = torch.cat([one["head.weight"] for one in slow.changed(at, moves)])
    torch.testing.assert_close(ours["head.weight"], expected, atol=1e-5, rtol=1e-4)
    assert tried.way == "whole"


@pytest.mark.parametrize("counts", [(20, 30), (30, 20)])
def test_a_model_with_fewer_logits_than_frames_shares_no_padded_passes(counts):
    module = recogniser().module.eval()
    module.joint.append(EverySecond(0))

    def loss(module, inputs, target, *, lengths=None, at="input"):
        return module(inputs, lengths).square().mean()  # takes any number of logits

    model = VictimModel(module, head="head", loss=loss)
    utterances = [voice(0, count) for count in counts]
    assert not ignores_padding(model, utterances, [SAID, SAID])
