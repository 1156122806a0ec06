"""From scores of frames to transcripts: the best path, and flashlight's beams."""

import importlib.util
import itertools

import pytest
import torch
from support.processes import elsewhere
from torch.nn import functional

from fedsim.gradients import BLANK, ctc_loss, frames_needed
from fedsim.tasks.speech import Speech
from fedsim.tasks.speech.recognisers.ctc import best_of_beam, best_path

beams = pytest.mark.skipif(
    importlib.util.find_spec("flashlight") is None, reason="needs flashlight-text"
)
MODEL = {"name": "deepspeech", "hidden": 64, "recurrent": 64, "context": 3}


def scores(frames: int, classes: int, seed: int):
    """Random log-probabilities (T, C)."""
    rng = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(frames, classes, generator=rng)).log_softmax(dim=1)


def likelihood(labels, frames) -> float:
    """log p of labels, summed over all their alignments."""
    if not len(labels):
        return float(frames[:, BLANK].sum())
    return -float(ctc_loss(frames[None].double(), torch.as_tensor(labels)[None]))


def test_the_best_path_merges_repetitions_and_leaves_out_blanks():
    path = torch.tensor([0, 1, 1, 0, 1, 2, 2, 0, 0, 3])
    assert best_path(functional.one_hot(path, 4).double()).tolist() == [1, 1, 2, 3]
    assert best_path(torch.zeros(3, 4)).tolist() == []


@beams
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_likeliest_labels(seed):
    frames = scores(4, 3, seed)
    every = [
        labels
        for size in range(5)
        for labels in itertools.product((1, 2), repeat=size)
        if not size or frames_needed(torch.tensor(labels)) <= 4
    ]
    likely = {labels: likelihood(labels, frames) for labels in every}
    assert tuple(best_of_beam(frames, 100).tolist()) == max(likely, key=likely.__getitem__)


@beams
def test_a_beam_adds_up_alignments_where_the_best_path_does_not():
    frames = torch.tensor([[0.6, 0.4], [0.6, 0.4]]).log()
    assert best_path(frames).tolist() == []
    assert best_of_beam(frames, 4).tolist() == [1]


@beams
def test_no_frames_and_no_numbers_give_no_labels():
    for frames in (torch.zeros(0, 3), torch.full((4, 3), torch.nan)):
        found = best_of_beam(frames, 4)
        assert found.tolist() == []
        assert found.dtype == torch.int64


@beams
def test_a_narrow_beam_of_likely_frames_is_the_best_path():
    frames = (50 * functional.one_hot(torch.tensor([3, 3, 0, 3, 1, 0, 2, 2]), 4)).float()
    assert best_of_beam(frames.log_softmax(dim=1), 2).tolist() == [3, 3, 1, 2]


def test_without_the_decoder_a_beam_is_refused_before_any_training():
    """Where flashlight-text is missing, or does not load."""
    script = f"""
import sys
sys.modules["flashlight"] = None
from fedsim.errors import DataError
from fedsim.tasks.speech.recognisers import as_recogniser
as_recogniser({MODEL!r}).build(26, 29)
try:
    as_recogniser({dict(MODEL, beam=7)!r}).build(26, 29)
except DataError as error:
    print(error)
"""
    said = elsewhere(script)
    assert said.startswith("task.model.beam = 7 needs torchaudio and flashlight-text: pip install")
    assert "pip install -e '.[beam]' in fedsim's folder" in said


@beams
def test_a_beams_words_are_no_worse_than_the_best_paths():
    """A recogniser in the middle of its training, on what it is trained on."""
    settings = {"speakers": 1, "utterances": 12, "longest": 18, "features": {"kind": "log-mel"}}
    greedy, beam = (
        Speech(seed=3, clients=1, model={**MODEL, "beam": width}, **settings) for width in (1, 16)
    )
    batch = greedy.batch(greedy.shares[0])
    module = greedy.module()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.005)
    for _ in range(130):
        optimizer.zero_grad()
        greedy.loss(module, batch.inputs, batch.labels, lengths=batch.lengths).backward()
        optimizer.step()
    errors = [task.evaluate(module, client=0)["wer"] for task in (greedy, beam)]
    assert errors[1] <= errors[0]
    assert 0 < errors[0] < 1
    with torch.no_grad():
        heard = module(batch.inputs, batch.lengths).log_softmax(dim=2)
    heard = [frames[:length] for frames, length in zip(heard, batch.lengths, strict=True)]
    for width in (16, 512):
        better = [
            likelihood(best_of_beam(one, width), one) - likelihood(best_path(one), one)
            for one in heard
        ]
        assert sum(better) > 0
        # A narrow beam may drop, on its way, a beginning that gathers more in the end.
        assert width < 512 or min(better) > -1e-4
