"""Recordings of so many seconds: which are kept, and how longer ones are cut at their pauses."""

import math

import pytest
import torch

from fedsim.errors import DataError
from fedsim.scenario import Scenario
from fedsim.tasks.speech.checks import cautions, check_lengths
from fedsim.tasks.speech.features import Features, Header
from fedsim.tasks.speech.segments import select_by_duration
from fedsim.tasks.speech.utterances import Recordings, Utterance
from fedsim.tasks.speech.voices import RATE
from fedsim.tasks.wordpieces import characters


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
    return Recordings(
        Utterance(f"s{index}", text, lambda sound=sound: sound, lambda: b"", f"utterance {index}")
        for index, (sound, text) in enumerate(zip(sounds, texts, strict=True))
    )


def test_only_utterances_of_the_length_are_kept():
    found = recordings(*(tone(seconds) for seconds in (0.5, 1.0, 1.5, 1.9, 2.0, 3.0)))
    kept = select_by_duration(found, (1.0, 2.0), False)
    assert kept.speakers == ("s1", "s2", "s3")
    assert [len(kept[index].sound()) / RATE for index in range(3)] == [1.0, 1.5, 1.9]
    with pytest.raises(DataError, match=r"1 last 0\.4 to 0\.6 s; expected 3"):
        select_by_duration(found, (0.4, 0.6), False)


def test_longer_ones_are_cut_in_pauses_and_words_follow_the_sound():
    said = "aaaa bbbb cccc dddd"
    found = recordings(spoken(1.2, 1.2, 1.2, 1.2), texts=(said,))
    kept = select_by_duration(found, (1.0, 2.0), True)
    assert kept.texts == ("aaaa", "bbbb", "cccc", "dddd")
    assert kept.speakers == ("s0",) * 4
    whole = found[0].sound()
    lengths = [len(kept[index].sound()) for index in range(4)]
    assert sum(lengths) == len(whole)
    assert torch.equal(torch.cat([kept[index].sound() for index in range(4)]), whole)
    # Cut in the middle of a pause: a tenth of a second of it on either side.
    assert lengths[0] / RATE == pytest.approx(1.3, abs=0.02)


def test_a_stretch_without_a_pause_is_left_out():
    sounds = spoken(1.5, 5.0, 1.5, 1.5)
    kept = select_by_duration(
        recordings(sounds, texts=("aaa bbbbbbbbbb ccc ddd",)), (1.0, 2.0), True
    )
    assert kept.texts == ("aaa", "ccc", "ddd")


def of_files(*sounds, texts=None, rate=8000, dropped=None):
    """As `recordings`, with headers; what is decoded is noted."""
    texts, decoded = texts or ("one two",) * len(sounds), []

    def of_file(index):
        def sound():
            decoded.append(index)
            return sounds[index]

        return Utterance(
            f"s{index}",
            texts[index],
            sound,
            content=lambda: b"file %d" % index,
            name=f"{index}.wav",
            header=lambda: Header(rate, 1, len(sounds[index]) * rate // RATE),
            dropped=dropped[index] if dropped else frozenset(),
        )

    return decoded, Recordings(map(of_file, range(len(sounds))))


def test_headers_tell_lengths_so_that_only_what_is_cut_is_decoded():
    sounds = (tone(0.5), tone(1.5), tone(1.5), spoken(1.2, 1.2), tone(1.5))
    decoded, found = of_files(*sounds)
    assert select_by_duration(found, (1.0, 2.0), False).speakers == ("s1", "s2", "s4")
    assert decoded == []
    cut = select_by_duration(found, (1.0, 2.0), True)
    assert cut.speakers == ("s1", "s2", "s3", "s3", "s4")
    assert decoded == [3]
    contents = [cut[index].content() for index in range(5)]
    assert len({*contents, cut.fingerprint()}) == 6
    assert decoded == [3]
    assert [cut[index].header().resampled for index in range(5)] == [
        len(cut[index].sound()) for index in range(5)
    ]


def test_pieces_are_checked_as_recordings_are():
    digits = frozenset("7")
    still = torch.zeros(round(1.5 * RATE))
    sounds = (spoken(1.2, 1.2), still, tone(0.5), tone(1.5))
    _, found = of_files(*sounds, dropped=(digits, frozenset(), digits, frozenset()))
    kept = select_by_duration(found, (1.0, 2.0), True)
    lost, slow, silent = cautions(kept, Features())
    assert lost.startswith("2 of 4 transcripts have characters that are left out (7)")
    assert slow == "4 of 4 recordings are resampled to 16000 Hz, from 8000 Hz"
    assert silent.startswith("1 of the first recordings are silent")
    assert silent.endswith("1.wav")


def test_a_piece_too_short_for_what_is_said_is_refused_by_its_place():
    said = "a" * 60 + " " + "b" * 60
    _, found = of_files(spoken(1.2, 1.2), tone(1.5), tone(1.5), texts=(said, "one", "two"))
    kept = select_by_duration(found, (1.0, 2.0), True)
    with pytest.raises(DataError, match=r"0\.wav \(0\.00 to 1\.30 s\) has 6\d frames, and .* 119"):
        check_lengths(kept, Features(), characters(("a b",)))


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
    seconds = [len(task.recordings[i].sound()) / RATE for i in range(len(task.recordings))]
    assert len(seconds) >= 3
    assert all(0.5 <= each < 1.5 for each in seconds)
    assert all(task.recordings.texts)
