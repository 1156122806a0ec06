"""Frames that can be looked at and listened to: as a picture, and as sound by Griffin-Lim."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.seeds import isolated
from fedsim.tasks.speech.features import OFFSET, Features, torchaudio
from fedsim.tasks.speech.sound_files import soundfile
from fedsim.tasks.speech.voices import RATE

__all__ = [
    "SHOWN",
    "Level",
    "estimate_level",
    "griffin_lim",
    "log_mel_energies",
    "render_frames",
    "spectrogram_png",
]

SHOWN = 4
"""Utterances of a victim that are shown and heard."""

SECONDS = 8
"""Of each of them, at most."""

SILENT, LOUDEST = math.log(OFFSET), 16.0
"""Log energies that no band of a sound in [-1, 1] goes below, or above (Parseval, window 4,096)."""

STEPS, ITERATIONS = 50, 32
"""Of the spectrum's least squares, and of Griffin and Lim's search for phases."""

PEAK = 0.8
FRAME_WIDTH, HEIGHT, GAP, STRIP = 4, 101, 6, 40
"""In pixels: of a frame, of a spectrum, between two, of the errors below. A report shows the
picture as high as it is, so that no row of pixels is doubled on one side alone."""

RAMP = ((13, 8, 42), (76, 22, 106), (168, 44, 92), (229, 93, 48), (250, 178, 60), (252, 252, 190))
"""From low values to high: even steps of lightness."""

COLOURS, MISSING, PAPER = 254, 254, 255

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What frames lose to being normalised, of utterances that are public.

    mean, spread: (F,) float64, of each value over an utterance, averaged over utterances. source:
    whose they are, in words.
    """

    mean: Tensor
    spread: Tensor
    source: str

    def put_back(self, frames: Tensor) -> Tensor:
        """Normalised frames (T, F) at this level, float64."""
        return frames.detach().cpu().double() * self.spread + self.mean


def estimate_level(features: Features, sounds: Sequence[Tensor], source: str) -> Level:
    """The level of sounds (n,) float32 at 16 kHz, one at least."""
    raw = features.model_copy(update={"normalised": False})
    heard = [raw.of(one).double() for one in sounds]
    means = torch.stack([one.mean(dim=0) for one in heard])
    spreads = torch.stack([one.std(dim=0, correction=0) for one in heard])
    return Level(means.mean(dim=0), spreads.mean(dim=0), source)


def render_frames(
    claims: Sequence[Tensor | None],
    originals: Sequence[Tensor],
    features: Features,
    public: Level | None,
) -> dict[str, bytes]:
    """Files of up to four utterances, by name, and what a reader has to know of them.

    claims: what was matched to each of the originals (T', F), finite; None: no file of that one.
    public: the level of public utterances, where frames are normalised. A picture each, the
    original above and each frame's error below; and the sound of both, at most 8 s, where
    `griffin_lim` has any. The level is the public one for both, so that what differs in them
    differs in the frames.
    """
    files: dict[str, bytes] = {}
    longest = SECONDS * RATE // features.stride
    for number, pair in enumerate([*zip(originals, claims, strict=True)][:SHOWN], 1):
        logs = [
            log_mel_energies(
                one[:longest] if public is None else public.put_back(one[:longest]), features
            )
            for one in pair
            if one is not None
        ]
        if len(logs) < len(pair):
            continue
        original, claim = (one[:longest].detach().cpu().double() for one in pair if one is not None)
        missed = original.clone()
        missed[: len(claim)] -= claim
        errors = missed.abs().mean(dim=1) / max(float(original.abs().mean()), 1e-9)
        files[f"reconstruction-{number}.png"] = spectrogram_png(logs[0], logs[1], errors)
        for name, one in zip(("original", "reconstruction"), logs, strict=True):
            heard = griffin_lim(one, features)
            if heard is not None:
                files[f"{name}-{number}.wav"] = _wav(heard)
    if files:
        files["about.txt"] = _about(features, public).encode()
    return files


def log_mel_energies(frames: Tensor, features: Features) -> Tensor:
    """Log-mel energies (T, bands) float64 of frames (T, F), not normalised.

    Of cosine coefficients (MFCC) those that have no others: the spectrum, smoothed. Values that no
    sound has become the nearest that one can have.
    """
    logs = frames.detach().cpu().double()
    if features.kind == "mfcc":
        cosines = torchaudio().functional.create_dct(features.size, features.bands, "ortho")
        logs = logs @ cosines.double().T
    return logs.nan_to_num(nan=SILENT).clamp(SILENT, LOUDEST)


def griffin_lim(logs: Tensor, features: Features) -> Tensor | None:
    """A sound (n,) float32 at 16 kHz that has about these log-mel energies (T, bands).

    Energies are spread over frequencies by non-negative least squares (Lee and Seung, NIPS 2000),
    and phases found by Griffin and Lim (IEEE TASSP 1984). None where windows hardly overlap, or
    frames are too few for a phase.
    """
    samples = (len(logs) - 1) * features.stride
    if 4 * features.stride > 3 * features.window or 2 * samples <= features.window:
        return None
    library = torchaudio()
    filters = library.functional.melscale_fbanks(
        features.window // 2 + 1, 0.0, RATE / 2, features.bands, RATE
    )
    search = library.transforms.GriffinLim(
        features.window, hop_length=features.stride, n_iter=ITERATIONS
    )
    with torch.no_grad(), isolated(0, "phases"):
        found: Tensor = search(_power((logs.exp() - OFFSET).float(), filters).T)
    return found


def _power(energies: Tensor, filters: Tensor) -> Tensor:
    """Power (T, frequencies) whose mel energies are about these, (T, bands)."""
    wanted = energies @ filters.T
    power = wanted + 1e-10
    for _ in range(STEPS):
        power = power * (wanted / (power @ filters @ filters.T + 1e-10))
    return power


def spectrogram_png(original: Tensor, claim: Tensor, errors: Tensor | None = None) -> bytes:
    """A PNG: spectra (T, bands) above, what was made of them (T', bands), T' <= T, below.

    Time runs to the right, frequency upwards, and one scale of colours serves both: from the 1st to
    the 99th percentile of the original. Grey: frames not claimed. errors: (T,), drawn as bars below
    both; the line that 1 reaches is half way up, and what exceeds 2 is cut off.
    """
    from PIL import Image

    low, high = (float(original.quantile(share)) for share in (0.01, 0.99))
    upper, lower = (_pixels(one, low, max(high - low, 1e-9)) for one in (original, claim))
    pixels = np.full((2 * len(upper) + GAP, upper.shape[1]), PAPER, dtype=np.uint8)
    pixels[: len(upper)] = upper
    pixels[-len(upper) :] = MISSING
    pixels[-len(upper) :, : lower.shape[1]] = lower
    if errors is not None:
        blank = np.full((GAP, pixels.shape[1]), PAPER, dtype=np.uint8)
        pixels = np.concatenate([pixels, blank, _bars(errors)])
    picture = Image.fromarray(pixels)
    picture.putpalette(_palette())
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True, transparency=PAPER)
    return stream.getvalue()


def _pixels(logs: Tensor, low: float, span: float) -> Pixels:
    shares = ((logs - low) / span).clamp(0, 1)
    values = (shares * (COLOURS - 1)).round().numpy().astype(np.uint8)
    rows = np.arange(HEIGHT) * values.shape[1] // HEIGHT
    found: Pixels = values.T[::-1][rows].repeat(FRAME_WIDTH, axis=1)
    return found


def _bars(errors: Tensor) -> Pixels:
    heights = (errors.nan_to_num(nan=2.0).clamp(0, 2) * STRIP / 2).round().long().numpy()
    filled = np.arange(STRIP, 0, -1)[:, None] <= heights.repeat(FRAME_WIDTH)
    found: Pixels = np.where(filled, COLOURS // 2, PAPER).astype(np.uint8)
    found[STRIP // 2] = MISSING
    return found


def _palette() -> list[int]:
    at = np.linspace(0, len(RAMP) - 1, COLOURS)
    channels = [np.interp(at, range(len(RAMP)), channel) for channel in zip(*RAMP, strict=True)]
    ramp = np.stack(channels, axis=1).round().astype(int).tolist()
    return [value for colour in (*ramp, (128, 128, 128), (255, 255, 255)) for value in colour]


def _wav(heard: Tensor) -> bytes:
    """16-bit PCM, its peak where every other has it."""
    loud = heard / max(float(heard.abs().max()), 1e-5) * PEAK
    stream = io.BytesIO()
    pcm = (loud * 32767).round().short().numpy()
    soundfile().write(stream, pcm, RATE, format="WAV", subtype="PCM_16")
    return stream.getvalue()


def _about(features: Features, public: Level | None) -> str:
    told = (
        "Spectra in mel bands, and sounds made from them, the originals' too: Griffin-Lim phases. "
        "Bars: the error of each frame; the line is what silence has on average."
    )
    if features.kind == "mfcc":
        told += f" {features.size} cosine coefficients leave a smoothed spectrum."
    if public is not None:
        told += (
            " Normalised frames have lost their means and variances; both sides are given those of "
            f"{public.source}."
        )
    return f"{told} {SECONDS} s at most, all at one loudness."
