"""How transcripts are scored: words after matching, labels over all word pieces."""

import math

import pytest
import torch
from support.small_speech import TASK

from fedsim.metrics import METRICS, baselines
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import SpeechSpec
from fedsim.tasks.speech import Speech


@pytest.fixture(scope="module")
def task():
    return Speech(seed=3, clients=4, **TASK)


def score(name, claimed, truth, spec):
    return METRICS[name].score(claimed, truth, spec)


PIECES = ("<end>", "▁one", "▁two", "▁th", "ree")
WORDS = SpeechSpec(classes=5, features=2, sample_rate=16_000, pieces=PIECES)
SAID = Truth(text=["one two three", "two two"])


@pytest.mark.parametrize(
    ("claimed", "wer", "exact"),
    [
        ({"text": ["one two three", "two two"]}, 0, 1),
        ({"text": ["Two  TWO", "one two three"]}, 0, 1),
        ({"sequences": [torch.tensor([2, 2, 0]), torch.tensor([1, 2, 3, 4])]}, 0, 1),
        ({"text": ["one two", "two two"]}, 0.2, 0.5),
        ({"text": ["two two"]}, 0.6, 0.5),
        ({"text": []}, 1, 0),
        ({"text": ["", ""]}, 1, 0),
        ({"text": ["one two three one", "a b c d"]}, 1, 0),
        ({"text": ["x x x", "y", "one two three", "two two"]}, 1, 0),
        ({"sequences": [torch.tensor([0, 1, 2])]}, 1, 0),
    ],
)
def test_words_are_counted_after_matching(claimed, wer, exact):
    claim = Reconstruction(**claimed)
    assert score("wer", claim, SAID, WORDS) == pytest.approx(wer)
    assert score("text_exact", claim, SAID, WORDS) == exact


def test_case_and_spaces_are_ignored_on_both_sides():
    said = Truth(text=["One  Two", "THREE"])
    claim = Reconstruction(text=["three", "one TWO"])
    assert score("wer", claim, said, WORDS) == 0
    assert score("text_exact", claim, said, WORDS) == 1


def test_originals_without_words_have_no_rate():
    claim, silent = Reconstruction(text=["one"]), Truth(text=[""])
    assert math.isnan(score("wer", claim, silent, WORDS))
    assert score("text_exact", claim, silent, WORDS) == 0


def test_metrics_of_words_are_for_tasks_with_transcripts():
    assert not METRICS["wer"].suits(Spec(classes=3))
    with pytest.raises(ValueError, match="no transcripts"):
        score("wer", Reconstruction(text=["a"]), Truth(), WORDS)


def test_every_metric_of_words_and_labels_has_its_baselines(task):
    truth = task.truth([0, 1], 0, batch_size=2, steps=1)
    found = {
        name: baselines(METRICS[name], truth, task.spec, task.guess, 0)
        for name in ("wer", "text_exact", "asr", "label_f1", "label_precision", "label_recall",
                     "label_exact", "label_correlation")
    }  # fmt: skip
    assert found["wer"][0] > 0.9
    assert found["wer"][1] <= 1  # that of no word
    assert found["text_exact"] == (0.0, 0.0)
    for name in ("asr", "label_f1", "label_precision", "label_recall", "label_correlation"):
        random, informed = found[name]
        assert 0 < random < 1, name
        assert 0 < informed <= 1, name
    assert found["asr"][0] < found["asr"][1]
    assert found["label_correlation"][0] < found["label_correlation"][1]


def test_label_metrics_score_all_word_pieces_of_all_transcripts(task):
    truth = task.truth([0], 0, batch_size=3, steps=1)
    present = frozenset(torch.cat(list(truth.sequences)).tolist())
    assert 0 in present
    claim = Reconstruction(label_set=present, labels=truth.labels)
    for name in ("label_f1", "label_precision", "label_recall", "label_exact", "asr"):
        assert score(name, claim, truth, task.spec) == 1
    without = Reconstruction(label_set=present - {0})
    assert score("label_recall", without, truth, task.spec) == 1 - 1 / len(present)
    assert score("label_precision", without, truth, task.spec) == 1
