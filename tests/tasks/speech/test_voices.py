"""Synthetic voices."""

import hashlib

import numpy as np
import pytest
import torch
from support.processes import elsewhere

from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.voices import BLOCK, PHONES, RATE, phones, speak, voice
from fedsim.tasks.transcripts import ALPHABET, public_text


def digest(sound) -> str:
    return hashlib.sha256(np.asarray(sound).tobytes()).hexdigest()


def test_a_voice_says_the_same_in_every_process():
    ours = digest(speak("zemka fixes the quilt", 5))
    assert ours == digest(speak("zemka fixes the quilt", 5))
    code = """
import hashlib
from fedsim.tasks.speech.voices import speak
print(hashlib.sha256(speak("zemka fixes the quilt", 5).tobytes()).hexdigest())
"""
    assert elsewhere(code) == ours
    assert digest(speak("zemka fixes the quilt", 6)) != ours
    assert digest(speak("zemka fixes the quilt", 5, take=1)) != ours


@pytest.mark.parametrize("text", ["a", "hm", *public_text("sentences", None)[:3], ALPHABET])
def test_any_plain_text_can_be_spoken(text):
    sound = speak(text, 3)
    assert sound.dtype == np.float32
    assert np.isfinite(sound).all()
    assert 0.2 < np.abs(sound).max() <= 0.6
    assert len(sound) % BLOCK == 0


def test_what_has_no_sound_is_a_quiet_room():
    assert 0 < np.abs(speak("'", 3)).max() < 1e-3


def test_letters_become_known_units():
    assert set(phones(" ".join(public_text("sentences", None)))) <= PHONES.keys()
    assert phones("that chip") == ["_", "th", "ae", "-", "t", ".", "-", "t", "sh", "ih", "-", "p",
                                   "_"]  # fmt: skip
    assert phones("bottle") == phones("botl")


def peak(sound, low, high):
    """The frequency between low and high (Hz) where the spectrum's envelope is highest."""
    size = 400  # windows shorter than two pitch periods show formants, not harmonics
    windows = np.lib.stride_tricks.sliding_window_view(sound, size)[:: size // 4] * np.hanning(size)
    power = (np.abs(np.fft.rfft(windows, 4096)) ** 2).mean(axis=0)
    at = np.fft.rfftfreq(4096, 1 / RATE)
    inside = (at >= low) & (at < high)
    return float(at[inside][power[inside].argmax()])


def pitch(sound):
    """The pitch (Hz) by the autocorrelation's highest peak."""
    correlation = np.correlate(sound, sound, "full")[len(sound) :]
    lags = slice(RATE // 400, RATE // 60)
    return RATE / (lags.start + 1 + int(correlation[lags].argmax()))


@pytest.mark.parametrize("speaker", range(4))
def test_speakers_have_the_pitch_and_the_formants_that_were_drawn(speaker):
    who = voice(speaker)
    sound = speak("oooooooooooo", speaker)[RATE // 5 : -RATE // 5].astype(np.float64)
    middle = sound[len(sound) // 2 - 1200 : len(sound) // 2 + 1200]
    assert pitch(middle) == pytest.approx(who.pitch, rel=0.15)
    vowel = speak("eeeeeeeeeeee", speaker)[RATE // 5 : -RATE // 5].astype(np.float64)
    assert peak(vowel, 1500, 4500) == pytest.approx(PHONES["iy"].f2 * who.tract, rel=0.1)


def test_deep_and_high_voices_differ():
    deep, high = (
        [voice(k).pitch for k in range(0, 20, 2)],
        [voice(k).pitch for k in range(1, 20, 2)],
    )
    assert max(deep) < min(high)
    assert len({voice(k) for k in range(100)}) == 100


def test_fricatives_hiss_where_vowels_do_not():
    def above(sound, edge=4000):
        power = np.abs(np.fft.rfft(sound)) ** 2
        return float(power[np.fft.rfftfreq(len(sound), 1 / RATE) > edge].sum() / power.sum())

    assert above(speak("sssssss", 0)) > 0.5
    assert above(speak("ooooooo", 0)) < 0.05


def test_a_word_sounds_like_itself_more_than_like_another():
    features = Features()

    def heard(word, take):
        found = features.of(torch.from_numpy(speak(word, 2, take)))
        return torch.nn.functional.interpolate(found.T[None], 40, mode="linear")[0]

    words = ["kettle", "violin", "harbour", "pumpkin", "sabiel"]
    first, second = ([heard(word, take) for word in words] for take in (0, 1))
    distances = torch.stack([torch.stack([(a - b).norm() for b in second]) for a in first])
    assert distances.argmin(dim=1).tolist() == [0, 1, 2, 3, 4]
