"""Attacks on frames where labels are word pieces and the loss is a mean over labels."""

import pytest
import torch
from support import spellers
from torch.nn.utils.rnn import pad_sequence

from adversaries.speech.candidates import encoded
from adversaries.speech.ctc_matching.dummy_frames import DummyFrames
from adversaries.speech.hfgm.direct_search import DirectSearch
from adversaries.speech.hfgm.frame_changes import Whole
from adversaries.speech.utterance_attack import distance_from
from fedsim import testing
from fedsim.spec import SpeechSpec

T = 30


def observed(lengths):
    """A recogniser, two utterances with so many labels, and their batch's gradient (1, *shape)."""
    model, rng = spellers.recogniser(), torch.Generator().manual_seed(0)
    frames = [torch.randn(T, spellers.FEATURES, generator=rng) for _ in lengths]
    said = [torch.randint(1, spellers.PIECES, (count,), generator=rng) for count in lengths]
    batch = pad_sequence(said, batch_first=True, padding_value=-100)
    sent = model.gradient(torch.stack(frames), batch, lengths=torch.tensor([T, T]))
    return model, frames, said, {name: value.detach()[None] for name, value in sent.items()}


@pytest.mark.parametrize("lengths", [(4, 4), (2, 9)])
@pytest.mark.parametrize("distance", ["cosine", "l2", "whitened"])
def test_hfgm_finds_no_distance_at_the_true_frames(distance, lengths):
    model, frames, said, theirs = observed(lengths)
    tried = [Whole(model, one, list(theirs)) for one in said]
    shapes = [(T, spellers.FEATURES)] * 2
    search = DirectSearch(tried, distance_from(theirs, distance), shapes, testing.job(device="cpu"))
    for turn, one in enumerate(frames):
        search.move_to(turn, one, tried[turn].move_to(one))
    assert search.now < 1e-6


@pytest.mark.parametrize("lengths", [(4, 4), (2, 9)])
@pytest.mark.parametrize("distance", ["cosine", "whitened"])
def test_ctc_matching_finds_no_distance_at_the_true_frames(distance, lengths):
    model, frames, said, theirs = observed(lengths)
    far, shapes = distance_from(theirs, distance), [(T, spellers.FEATURES)] * 2
    matched = DummyFrames(model, said, shapes, list(theirs), True, far, 0.0, 1)
    point = torch.cat([one.flatten() for one in frames])[None]
    assert float(matched(point, torch.zeros(1, dtype=torch.int64)).detach()) < 1e-6


def test_transcripts_are_refused():
    spec = SpeechSpec(
        classes=3, input_shape=None, features=8, sample_rate=0, pieces=("</s>", "a", "ab")
    )
    with pytest.raises(ValueError, match="this recogniser writes word pieces"):
        encoded("ab", spec)
