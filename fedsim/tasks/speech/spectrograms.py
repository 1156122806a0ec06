"""Spectrograms and sounds of original and reconstructed frames."""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedsim.seeds import isolated
from fedsim.tasks.speech.data import READABLE
from fedsim.tasks.speech.features import OFFSET, Features, soundfile, torchaudio
from fedsim.tasks.speech.utterances import Recordings
from fedsim.tasks.speech.voices import RATE, speak
from fedsim.tasks.transcripts import SENTENCES, public_text

PUBLIC = 16
"""The largest number of utterances that a level is estimated from."""

SHOWN = 4
"""The largest number of a victim's utterances that are shown."""

SECONDS = 8
"""The largest duration of an utterance that is shown, in seconds."""

SILENT, LOUDEST = math.log(OFFSET), 16.0
"""Bounds of the log energy of a band for sounds in [-1, 1] (Parseval, window of 4,096 samples)."""

STEPS, ITERATIONS = 50, 32
"""Iterations of the spectrum's least squares, and of Griffin and Lim's search for phases."""

PEAK = 0.8
"""The largest absolute sample of each sound."""
FRAME_WIDTH, HEIGHT, GAP, STRIP = 4, 101, 6, 40
"""Sizes in pixels: of a frame, of a spectrogram, of the gap between two, and of the bars below. A
report shows a picture in its own height, so that no row of pixels is doubled on one side alone."""

RAMP = ((13, 8, 42), (76, 22, 106), (168, 44, 92), (229, 93, 48), (250, 178, 60), (252, 252, 190))
"""Colours from low to high values, in even steps of lightness."""

COLOURS, MISSING, PAPER = 254, 254, 255
"""The number of colours of the ramp, and the palette's entries for missing frames and for paper."""

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Mean and standard deviation of frames, which normalisation removes, of public utterances.

    Attributes:
        mean: The mean of each value over an utterance, averaged over utterances, float64 of shape
            (F,).
        spread: The standard deviation likewise, float64 of shape (F,).
        source: Which utterances these are, in words.
    """

    mean: Tensor
    spread: Tensor
    source: str

    def put_back(self, frames: Tensor) -> Tensor:
        """Undo the normalisation of frames of shape (T, F); returns float64."""
        return frames.detach().cpu().double() * self.spread + self.mean


def estimate_level(features: Features, sounds: Sequence[Tensor], source: str) -> Level:
    """Estimate the level of sounds.

    Args:
        features: How sound becomes frames.
        sounds: At least one sound, each float32 of shape (n,) at 16 kHz.
        source: Which sounds these are, in words.
    """
    raw = features.model_copy(update={"normalised": False})
    frames = [raw.of(one).double() for one in sounds]
    means = torch.stack([one.mean(dim=0) for one in frames])
    spreads = torch.stack([one.std(dim=0, correction=0) for one in frames])
    return Level(means.mean(dim=0), spreads.mean(dim=0), source)


def public_level(recordings: Recordings, auxiliary: Tensor, features: Features) -> Level:
    """Estimate the level of public utterances.

    Args:
        recordings: The data set.
        auxiliary: Indices of the utterances that no client holds, int64. If there are none,
            synthetic voices are used instead.
        features: How sound becomes frames.
    """
    index = auxiliary[:PUBLIC].tolist()
    if index:
        sounds = [recordings[i].sound() for i in index]
        return estimate_level(features, sounds, f"{len(index)} utterances that no client holds")
    sentences = [text for text in public_text(SENTENCES, None) if len(text) < READABLE]
    sounds = [torch.from_numpy(speak(text, who)) for who, text in enumerate(sentences[:PUBLIC])]
    return estimate_level(features, sounds, f"{len(sounds)} synthetic voices")


def render_frames(
    claims: Sequence[Tensor | None],
    originals: Sequence[Tensor],
    features: Features,
    public: Level | None,
) -> dict[str, bytes]:
    """Files that show up to four utterances and the frames that were matched to them.

    For each there is a picture, with the original above, the claim below it and the error of each
    frame at the bottom; and the sounds of both, at most 8 s long, if `griffin_lim` finds any. Both
    get the same public level, so that what differs between them differs between the frames.

    Args:
        claims: What was matched to each original, finite, of shape (T', F); None if nothing was.
        originals: The true frames, each of shape (T, F).
        features: How sound becomes frames.
        public: The level of public utterances if frames are normalised, else None.

    Returns:
        The files by name; empty if nothing was matched.
    """
    files: dict[str, bytes] = {}
    longest = SECONDS * RATE // features.stride
    for number, (true, claim) in enumerate([*zip(originals, claims, strict=True)][:SHOWN], 1):
        if claim is None:
            continue
        original, claimed = (one[:longest].detach().cpu().double() for one in (true, claim))
        logs = [
            log_mel_energies(one if public is None else public.put_back(one), features)
            for one in (original, claimed)
        ]
        missed = original.clone()
        missed[: len(claimed)] -= claimed
        errors = missed.abs().mean(dim=1) / max(float(original.abs().mean()), 1e-9)
        files[f"reconstruction-{number}.png"] = spectrogram_png(logs[0], logs[1], errors)
        for name, one in zip(("original", "reconstruction"), logs, strict=True):
            if (sound := griffin_lim(one, features)) is not None:
                files[f"{name}-{number}.wav"] = _wav(sound)
    if files:
        files["about.txt"] = _about(features, public).encode()
    return files


def log_mel_energies(frames: Tensor, features: Features) -> Tensor:
    """Convert frames that are not normalised to log-mel energies.

    For MFCC these are the energies whose other cosine coefficients are zero: a smoothed spectrum.
    Values that no sound has are replaced by the nearest possible ones.

    Args:
        frames: Frames of shape (T, F).
        features: How sound becomes frames.

    Returns:
        Log energies, float64 of shape (T, bands).
    """
    logs = frames.detach().cpu().double()
    if features.kind == "mfcc":
        cosines = torchaudio().functional.create_dct(features.size, features.bands, "ortho")
        logs = logs @ cosines.double().T
    return logs.nan_to_num(nan=SILENT).clamp(SILENT, LOUDEST)


def griffin_lim(logs: Tensor, features: Features) -> Tensor | None:
    """Find a sound that has approximately these log-mel energies.

    Energies are spread over frequencies by non-negative least squares (Lee and Seung, NIPS 2000).
    Phases are found by the algorithm of Griffin and Lim (IEEE TASSP 1984).

    Args:
        logs: Log energies of shape (T, bands).
        features: How sound becomes frames.

    Returns:
        Samples, float32 of shape (n,) at 16 kHz; None if windows hardly overlap or frames are too
        few to determine phases.
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
    wanted = (logs.exp() - OFFSET).float() @ filters.T
    power = wanted + 1e-10
    with torch.no_grad(), isolated(0, "phases"):
        for _ in range(STEPS):
            power = power * (wanted / (power @ filters @ filters.T + 1e-10))
        found: Tensor = search(power.T)
    return found


def spectrogram_png(original: Tensor, claim: Tensor, errors: Tensor | None = None) -> bytes:
    """Draw an original spectrogram above a claimed one, with the error of each frame below.

    Time runs to the right and frequency upwards. Both have the same colour scale, from the 1st to
    the 99th percentile of the original. Frames that were not claimed are grey.

    Args:
        original: Log energies of shape (T, bands).
        claim: Log energies of shape (T', bands), where T' <= T.
        errors: The error of each frame, of shape (T,); None for no bars. The line in the middle
            marks an error of 1; bars end at 2.

    Returns:
        The PNG file.
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
    return cast(Pixels, values.T[::-1][rows].repeat(FRAME_WIDTH, axis=1))


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


def _wav(sound: Tensor) -> bytes:
    """A WAV file of 16-bit PCM; all have the same peak."""
    loud = sound / max(float(sound.abs().max()), 1e-5) * PEAK
    stream = io.BytesIO()
    pcm = (loud * 32767).round().short().numpy()
    soundfile().write(stream, pcm, RATE, format="WAV", subtype="PCM_16")
    return stream.getvalue()


def _about(features: Features, public: Level | None) -> str:
    about = (
        "Spectra in mel bands, and sounds made from them, the originals' too: Griffin-Lim phases. "
        "Bars: the error of each frame; the line is what silence has on average."
    )
    if features.kind == "mfcc":
        about += f" {features.size} cosine coefficients leave a smoothed spectrum."
    if public is not None:
        about += (
            " Normalised frames have lost their means and variances; both sides are given those of "
            f"{public.source}."
        )
    return f"{about} {SECONDS} s at most, all at one loudness."
