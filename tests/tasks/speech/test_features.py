"""Frames of features from sound."""

import hashlib
import sys

import numpy as np
import pytest
import torch
from support.processes import fresh_python

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.tasks.speech.data import Limits, load
from fedsim.tasks.speech.features import Features, Header, resample, trim_silence
from fedsim.tasks.speech.voices import RATE, speak


def digest(sound) -> str:
    return hashlib.sha256(np.asarray(sound).tobytes()).hexdigest()


@pytest.mark.parametrize("window", [511, 512])
@pytest.mark.parametrize("samples", [100, 3_199, 3_200, 3_201])
def test_a_header_says_how_many_frames_there_will_be(window, samples):
    features = Features(window=window)
    found = features.of(torch.randn(samples, generator=torch.Generator().manual_seed(0)))
    assert len(found) == Header(RATE, 1, samples).frames(features)


@pytest.mark.parametrize("kind", ["mfcc", "log-mel"])
@pytest.mark.parametrize("samples", [1, 511, 512, 16_000, 16_319, 16_320])
def test_a_frame_every_twenty_milliseconds(kind, samples):
    sound = torch.randn(samples, generator=torch.Generator().manual_seed(0))
    found = Features(kind=kind).of(sound)
    assert found.shape == (1 + max(samples, 512) // 320, 26)
    assert found.dtype == torch.float32
    assert torch.isfinite(found).all()


@pytest.mark.parametrize("sound", [torch.zeros(16_000), torch.full((16_000,), 0.3)])
def test_frames_of_silence_are_zeros_and_not_amplified_rounding(sound):
    assert float(Features().of(sound)[2:-2].abs().max()) < 1e-3


def test_normalised_frames_have_mean_zero_and_variance_one():
    sound = torch.from_numpy(speak("the kettle", 1))
    found = Features().of(sound)
    torch.testing.assert_close(found.mean(dim=0), torch.zeros(26), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.var(dim=0, correction=0), torch.ones(26), atol=1e-4, rtol=0)
    raw = Features(normalised=False).of(sound)
    torch.testing.assert_close((raw - raw.mean(0)) / raw.std(0, correction=0), found)


@pytest.mark.parametrize("kind", ["mfcc", "log-mel"])
def test_silence_is_finite(kind):
    assert Features(kind=kind).of(torch.zeros(4000)).abs().max() < 1e-5


def test_log_mel_finds_a_tone_in_its_band():
    """The centre of band k of 40 is at (k + 1) / 41 of 0 to 8 kHz in mel (HTK's)."""
    for band in (10, 20, 30):
        top = 2595 * np.log10(1 + 8000 / 700)
        hertz = 700 * (10 ** ((band + 1) / 41 * top / 2595) - 1)
        tone = torch.sin(2 * torch.pi * hertz * torch.arange(8000) / RATE)
        found = Features(kind="log-mel", size=40, normalised=False).of(tone)
        assert found[5:-5].argmax(dim=1).unique().tolist() == [band]


def test_mfcc_are_the_cosine_transform_of_log_mel():
    sound = torch.from_numpy(speak("harbour", 1))
    mel = Features(kind="log-mel", size=40, normalised=False).of(sound).double()
    k, n = torch.arange(26)[:, None], torch.arange(40)[None]
    basis = torch.cos(torch.pi / 40 * (n + 0.5) * k) * (2 / 40) ** 0.5
    basis[0] /= 2**0.5
    found = Features(normalised=False).of(sound).double()
    torch.testing.assert_close(found, mel @ basis.T.double(), atol=1e-3, rtol=1e-4)


def test_trimming_takes_silence_off_both_ends_only():
    loud = torch.ones(3200)
    quiet = torch.full((1600,), 0.001)
    sound = torch.cat([quiet, loud, quiet, loud, quiet, quiet])
    assert len(trim_silence(sound, 40)) == 3200 + 1600 + 3200
    assert len(trim_silence(sound, 70)) == len(sound)
    assert len(trim_silence(torch.zeros(999), 40)) == 999
    assert len(Features(trim=40).of(sound)) == 1 + 8000 // 320


def test_bands_too_many_for_the_window_are_refused():
    with pytest.raises(DataError, match=r"features\.size = 128 mel bands are too many"):
        Features(kind="log-mel", size=128, window=256).of(torch.zeros(4000))


def test_without_torchaudio_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setattr(libraries, "torchaudio", lambda: None)
    with pytest.raises(DataError, match=r"pip install -e '\.\[audio\]' in"):
        resample(torch.zeros(100), 8000)


def test_missing_packages_are_named_before_anything_is_loaded(monkeypatch):
    for name in ("jiwer", "torchaudio"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match=r"speech needs jiwer, torchaudio: pip install -e '\.\["):
        load("voices", None, "sentences", Limits(speakers=5, utterances=1))


@pytest.mark.parametrize("error", ["OSError", "RuntimeError"])
def test_frames_need_none_of_torchaudios_compiled_parts(error):
    """error: what loading them raises beside a torch of another CUDA version, or without CUDA."""
    code = f"""
import hashlib, torch
def load_library(path):
    raise {error}("no such extension")
torch.ops.load_library = load_library
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.voices import speak
frames = Features().of(torch.from_numpy(speak("kettle", 1)))
print(hashlib.sha256(frames.numpy().tobytes()).hexdigest())
"""
    assert fresh_python(code) == digest(Features().of(torch.from_numpy(speak("kettle", 1))))
