"""Synthetic voices: a source-filter synthesiser that reads any text. No real voice is used.

A train of glottal pulses (Rosenberg, JASA 1971) at the speaker's pitch, and noise, pass through
resonators at the formants of phone-like units, scaled by the length of the speaker's vocal tract
(Klatt, JASA 1980: a cascade for the voice and one resonator for the noise). Vowels have the
formants that Peterson and Barney (JASA 1952) measured. Letters become phones by simple rules. The
result sounds like a robot, but a word always sounds the same, which is what a recogniser needs.
"""

import functools
import itertools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsim.seeds import numpy_generator

RATE = 16_000
"""Samples per second, in Hz."""

BLOCK = 160
"""Samples during which the filters are constant: 10 ms."""

SPAN = 1024
"""Samples of a block's response; the rest of the response is cut off."""

PEAK = 0.5
WIDTHS = (70.0, 100.0, 140.0, 250.0)
"""Bandwidths of the formants in Hz."""

FLOOR = 1e-4
"""Level of the background noise, so that no frame is digital silence."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phone:
    """A phone-like unit of sound.

    Attributes:
        f1: First formant in Hz.
        f2: Second formant in Hz.
        f3: Third formant in Hz.
        ms: Duration in milliseconds.
        voiced: Level of the glottal pulses.
        noise: Level of the noise.
        centre: Centre frequency of the noise's resonance in Hz.
        width: Bandwidth of the noise's resonance in Hz.
    """

    f1: float
    f2: float
    f3: float
    ms: float
    voiced: float = 1.0
    noise: float = 0.0
    centre: float = 2500.0
    width: float = 1000.0


_STORED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PHONES = {name: Phone(*values) for name, values in _STORED["phones"].items()}
SPELLINGS: dict[str, str] = _STORED["spellings"]
GRAPHEME = re.compile("|".join(sorted(SPELLINGS, key=len, reverse=True)))
DOUBLED = re.compile(r"([b-df-hj-np-tv-z])\1")
SILENT_E = re.compile(r"(?<=[a-z]{2})(?<=[^aeiou])e\b")


def phones(text: str) -> list[str]:
    """Convert a normalised text to the names of the phones that it is read as."""
    spelled = SILENT_E.sub("", DOUBLED.sub(r"\1", text))
    units = [SPELLINGS[grapheme].split() for grapheme in GRAPHEME.findall(spelled)]
    return ["_", *itertools.chain(*units), "_"]


@dataclass(frozen=True, slots=True)
class Voice:
    """The parameters of a speaker's voice.

    Attributes:
        pitch: Mean pitch in Hz.
        tract: Factor on the formants, by the length of the vocal tract.
        pace: Factor on the durations of phones.
        range: How far the pitch falls and wavers, as a share of it.
        breath: Level of the noise beside the pulses.
        opening: Share of a period in which the glottis is open.
        tilt: Spectral tilt of the pulses.
        width: Factor on the bandwidths of the formants.
    """

    pitch: float
    tract: float
    pace: float
    range: float
    breath: float
    opening: float
    tilt: float
    width: float


@functools.cache
def voice(speaker: int) -> Voice:
    """Draw the voice of a speaker; even numbers have deeper voices.

    It depends on the number alone.
    """
    rng = numpy_generator(0, "voice", speaker)
    deep = speaker % 2 == 0
    # In the order in which they are drawn.
    bounds = {
        "tract": (0.88, 1.02),
        "pitch": (85.0, 145.0) if deep else (160.0, 260.0),
        "pace": (0.75, 1.15),
        "range": (0.05, 0.25),
        "breath": (0.005, 0.06),
        "opening": (0.45, 0.75),
        "tilt": (0.0, 0.6),
        "width": (0.8, 1.5),
    }
    drawn = {name: float(rng.uniform(*within)) for name, within in bounds.items()}
    return Voice(**{**drawn, "tract": drawn["tract"] + 0.14 * (not deep)})


def speak(text: str, speaker: int, take: int = 0) -> NDArray[np.float32]:
    """Synthesise a text in a speaker's voice, a pure function of the arguments.

    Args:
        text: A normalised text.
        speaker: The number of the speaker.
        take: The number of the reading; readings differ as two by one person do.

    Returns:
        Samples, float32 of shape (n,) in [-1, 1] at 16 kHz.
    """
    who, rng = voice(speaker), numpy_generator(0, "take", speaker, take, text)
    pace = who.pace * rng.uniform(0.93, 1.07)
    units = [PHONES[name] for name in phones(text)]
    blocks = [
        max(1, round(unit.ms * pace * rng.uniform(0.85, 1.15) * RATE / 1000 / BLOCK))
        for unit in units
    ]

    def track(name: str, smooth: int) -> Array:
        """A value a block, eased from one unit to the next."""
        steps = np.repeat([getattr(unit, name) for unit in units], blocks)
        kernel = np.hanning(2 * smooth + 3)[1:-1]
        padded = np.pad(steps, smooth, mode="edge")
        eased: Array = np.convolve(padded, kernel / kernel.sum(), "valid")
        return eased

    voiced = np.repeat(track("voiced", 1), BLOCK)
    source = _pulses(len(voiced), who, rng) * voiced
    source = source + who.breath * voiced * rng.standard_normal(len(voiced))
    formants = [track(name, 2) * who.tract for name in ("f1", "f2", "f3")]
    formants.append(np.full_like(formants[0], 3600.0 * who.tract))
    widths = [np.full_like(formants[0], w * who.width) for w in WIDTHS]
    vowels = _filtered(source, formants, widths, peak=False)
    noise = rng.standard_normal(len(voiced)) * np.repeat(track("noise", 1), BLOCK)
    hiss = _filtered(noise, [track("centre", 1) * who.tract], [track("width", 1)], peak=True)
    sound = vowels / _level(vowels) + hiss
    sound *= PEAK / max(np.abs(sound).max(), 1e-9)
    return (sound + FLOOR * rng.standard_normal(len(sound))).astype(np.float32)


def _pulses(count: int, who: Voice, rng: np.random.Generator) -> Array:
    """The glottal flow, differentiated as radiation at the lips does; of shape (count,)."""
    along = np.arange(count) / max(count - 1, 1)
    waver = np.interp(along, np.linspace(0, 1, 8), rng.uniform(-1, 1, 8))
    pitch = who.pitch * (1 + who.range * (0.5 - along + 0.4 * waver))
    phase = np.cumsum(pitch / RATE) % 1.0
    rise, fall = who.opening * 2 / 3, who.opening / 3
    opening = 0.5 * (1 - np.cos(np.pi * phase / rise))
    closing = np.cos(np.pi / 2 * (phase - rise) / fall)
    flow = np.where(phase < rise, opening, np.where(phase < rise + fall, closing, 0.0))
    found = np.diff(flow, prepend=0.0)
    tilted: Array = found + who.tilt * np.concatenate([[0.0], found[:-1]])
    return tilted / _level(tilted)


def _level(sound: Array) -> float:
    return max(float(np.sqrt(np.mean(sound**2))), 1e-9)


def _filtered(sound: Array, centres: list[Array], widths: list[Array], *, peak: bool) -> Array:
    """Filter a sound by a cascade of resonators that change from block to block.

    Each block is filtered in the frequency domain under a Hann window of two blocks; the results
    are overlapped and added.

    Args:
        sound: Samples of shape (n,).
        centres: For each resonator its centre in each block, in Hz.
        widths: For each resonator its bandwidth in each block, in Hz.
        peak: Whether a resonator has gain 1 at its centre; otherwise at 0 Hz.
    """
    blocks = len(sound) // BLOCK
    # Klatt's resonator: y = A x + B y' + C y'', with A = 1 - B - C for a gain of 1 at 0 Hz.
    radius = np.exp(-np.pi * np.stack(widths) / RATE)
    angle = 2 * np.pi * np.minimum(np.stack(centres), 0.48 * RATE) / RATE
    b, c = 2 * radius * np.cos(angle), -(radius**2)
    at_centre = (1 - radius) * np.sqrt(1 - 2 * radius * np.cos(2 * angle) + radius**2)
    a = at_centre if peak else 1 - b - c
    back = np.exp(-2j * np.pi * np.arange(SPAN // 2 + 1) / SPAN)
    z, z2 = back.astype(np.complex64), (back**2).astype(np.complex64)
    poles = np.ones((blocks, len(back)), dtype=np.complex64)
    for b_k, c_k in zip(b.astype(np.float32), c.astype(np.float32), strict=True):
        poles *= 1 - b_k[:, None] * z - c_k[:, None] * z2
    window = 0.5 - 0.5 * np.cos(np.pi * np.arange(2 * BLOCK) / BLOCK)
    padded = np.concatenate([sound, np.zeros(BLOCK)])
    pieces = np.lib.stride_tricks.sliding_window_view(padded, 2 * BLOCK)[::BLOCK]
    spectra = np.fft.rfft(pieces * (window * a.prod(axis=0)[:, None]), SPAN)
    parts = np.fft.irfft(spectra / poles, SPAN)
    made = np.zeros(len(sound) + SPAN)
    for block, part in enumerate(parts):
        made[block * BLOCK : block * BLOCK + SPAN] += part
    return made[: len(sound)]
