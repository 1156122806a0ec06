"""Recordings of so many seconds: which are kept, and how longer ones are cut at their pauses."""

import math

import pytest
import torch

from fedsim.errors import DataError
from fedsim.scenario import Scenario
from fedsim.tasks.cutting import lasting
from fedsim.tasks.speech_data import Recordings
from fedsim.tasks.voices import RATE


def tone(seconds: float):
    return torch.sin(torch.arange(round(seconds * RATE)) * 2 * math.pi * 440 / RATE)


def spoken(*parts: float):
    """Tones of so many seconds with pauses of 0.2 s between them."""
    pieces = [tone(parts[0])]
    for part in parts[1:]:
        pieces += [torch.zeros(RATE // 5), tone(part)]
    return torch.cat(pieces)


def recordings(*sounds, texts=None):
    texts = texts or ("one two",) * len(sounds)
    names = tuple(f"s{index}" for index in range(len(sounds)))
    return Recordings(names, tuple(texts), lambda i: sounds[i], lambda i: b"", None)


def test_only_utterances_of_the_length_are_kept():
    found = recordings(*(tone(seconds) for seconds in (0.5, 1.0, 1.5, 1.9, 2.0, 3.0)))
    kept = lasting(found, (1.0, 2.0), False)
    assert kept.speakers == ("s1", "s2", "s3")
    assert [len(kept.sound(index)) / RATE for index in range(3)] == [1.0, 1.5, 1.9]
    with pytest.raises(DataError, match=r"1 last 0\.4 to 0\.6 s; expected 3"):
        lasting(found, (0.4, 0.6), False)


def test_longer_ones_are_cut_in_pauses_and_words_follow_the_sound():
    said = "aaaa bbbb cccc dddd"
    found = recordings(spoken(1.2, 1.2, 1.2, 1.2), texts=(said,))
    kept = lasting(found, (1.0, 2.0), True)
    assert kept.texts == ("aaaa", "bbbb", "cccc", "dddd")
    assert kept.speakers == ("s0",) * 4
    whole = found.sound(0)
    lengths = [len(kept.sound(index)) for index in range(4)]
    assert sum(lengths) == len(whole)
    assert torch.equal(torch.cat([kept.sound(index) for index in range(4)]), whole)
    # Cut in the middle of a pause: a tenth of a second of it on either side.
    assert lengths[0] / RATE == pytest.approx(1.3, abs=0.02)


def test_a_stretch_without_a_pause_is_left_out():
    sounds = spoken(1.5, 5.0, 1.5, 1.5)
    kept = lasting(recordings(sounds, texts=("aaa bbbbbbbbbb ccc ddd",)), (1.0, 2.0), True)
    assert kept.texts == ("aaa", "ccc", "ddd")


def test_the_task_cuts_voices():
    task = Scenario.model_validate(
        {
            "name": "t",
            "task": {
                "name": "speech",
                "data": "voices",
                "model": "deepspeech",
                "speakers": 2,
                "utterances": 4,
                "seconds": [0.5, 1.5],
                "cut": True,
                "longest": 40,
            },
            "training": {"clients": 2},
        }
    ).build_task()
    seconds = [len(task.recordings.sound(i)) / RATE for i in range(len(task.recordings))]
    assert len(seconds) >= 3
    assert all(0.5 <= each < 1.5 for each in seconds)
    assert all(task.recordings.texts)
