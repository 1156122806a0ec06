"""Sound files, read by soundfile, and frames of speech: MFCC or log-mel energies by torchaudio."""

import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedsim import libraries
from fedsim.described import Described
from fedsim.errors import DataError
from fedsim.tasks.speech.voices import RATE

MELS = 40
"""The smallest number of mel bands that MFCC are computed from."""

OFFSET = 1e-6
"""Added to the energy of a band before the logarithm, as torchaudio's MFCC do."""


class Features(Described):
    """How the sound of an utterance becomes frames.

    The defaults are those of Dang et al. (HFGM, 2021): 26 MFCC, windows of 32 ms every 20 ms.
    """

    kind: Literal["mfcc", "log-mel"] = "mfcc"
    """Kind of frames: "mfcc" (mel-frequency cepstral coefficients) or "log-mel" (log energies)."""

    size: int = Field(default=26, ge=2, le=128)
    """Number of values in a frame."""

    window: int = Field(default=512, ge=64, le=4096)
    """Length of a window in samples at 16 kHz."""

    stride: int = Field(default=320, ge=16, le=4096)
    """Distance from one window to the next in samples at 16 kHz."""

    normalised: bool = True
    """Whether each value is normalised to mean 0 and variance 1 over its utterance."""

    trim: float | None = Field(default=None, gt=0)
    """Trim both ends of a recording where stretches of 20 ms are more than this many dB below the
    loudest one; by default nothing is trimmed."""

    @property
    def bands(self) -> int:
        """The number of mel bands that the values of a frame are computed from."""
        return self.size if self.kind == "log-mel" else max(MELS, self.size)

    def of(self, sound: Tensor) -> Tensor:
        """Compute the frames of a sound.

        Args:
            sound: Samples, float32 of shape (n,) at 16 kHz. A sound shorter than a window is filled
                up with zeros.

        Returns:
            Frames, float32 of shape (T, size), where T = 1 + n // stride, or 1 + (n - 1) // stride
            if the window is odd.

        Raises:
            DataError: torchaudio is not installed, or `size` would leave a mel band empty.
        """
        if self.trim is not None:
            sound = trim_silence(sound, self.trim)
        if len(sound) < self.window:
            sound = torch.nn.functional.pad(sound, (0, self.window - len(sound)))
        with torch.no_grad():
            frames: Tensor = _transform(self)(sound)
            if self.kind == "log-mel":
                frames = (frames + OFFSET).log()
            frames = frames.T.contiguous()
            if self.normalised:
                apart = frames - frames.mean(dim=0)
                spread = apart.square().mean(dim=0).sqrt()
                # Values that vary by rounding errors only, as in silence, are constant.
                still = spread <= 1e-6 * frames.abs().amax(dim=0)
                frames = torch.where(still, 0.0, apart / spread.clamp(min=1e-5))
        return frames.float()


@functools.lru_cache(maxsize=8)
def _transform(features: Features) -> Any:
    transforms = torchaudio().transforms
    mel = {"n_fft": features.window, "hop_length": features.stride, "n_mels": features.bands}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            if features.kind == "log-mel":
                return transforms.MelSpectrogram(RATE, **mel)
            return transforms.MFCC(RATE, features.size, log_mels=True, melkwargs=mel)
    except UserWarning as warning:
        raise DataError(
            f"features.size = {features.size} mel bands are too many for a window of "
            f"{features.window} samples: some would be empty. Lower it, or widen the window"
        ) from warning


def trim_silence(sound: Tensor, below: float) -> Tensor:
    """Remove both ends of a sound where stretches of 20 ms are quieter than a threshold.

    Args:
        sound: Samples of shape (n,) at 16 kHz.
        below: The threshold, in dB below the loudest stretch.

    Returns:
        The rest of the sound; a silent sound is returned unchanged.
    """
    hop = RATE // 50
    energy = torch.nn.functional.pad(sound, (0, -len(sound) % hop)).view(-1, hop).square().mean(1)
    loud = (energy > energy.max() * 10 ** (-below / 10)).nonzero().flatten()
    return sound[int(loud[0]) * hop : (int(loud[-1]) + 1) * hop] if len(loud) else sound


def resample(sound: Tensor, rate: int) -> Tensor:
    """Resample a sound of shape (n,) from `rate` Hz to 16 kHz."""
    return cast(Tensor, torchaudio().functional.resample(sound, rate, RATE))


def torchaudio() -> Any:
    """Import torchaudio, whatever CUDA version it was compiled for.

    Raises:
        DataError: torchaudio is not installed.
    """
    found = libraries.torchaudio()
    if found is None:
        raise DataError(f"speech needs torchaudio: {libraries.installing('audio')}")
    return found


CUT = re.compile(r"^data *: (?P<stated>\d+) \(should be (?P<found>\d+)\)", re.MULTILINE)
"""What libsndfile notes of a WAV file that is shorter than its header states."""

STREAMED = 2**31 - 2**16
"""Bytes that headers state whose writer did not know the length."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of a sound file says.

    Attributes:
        rate: Samples per second and channel, in Hz.
        channels: The number of channels.
        samples: The number of samples of each channel.
    """

    rate: int
    channels: int
    samples: int

    @property
    def resampled(self) -> int:
        """The number of samples at 16 kHz."""
        return -(-self.samples * RATE // self.rate)

    def frames(self, features: Features) -> int:
        """The number of frames of the whole file, without trimming."""
        samples = max(self.resampled, features.window) - features.window % 2
        return 1 + samples // features.stride


def read_header(source: Any, where: str) -> Header:
    """Read the header of a sound file.

    Args:
        source: A path or a stream.
        where: The file's name in error messages.

    Raises:
        DataError: soundfile is not installed or cannot read the file.
    """
    with _soundfile(where) as library:
        info = library.info(source)
    return Header(int(info.samplerate), int(info.channels), int(info.frames))


def decode(source: Any, where: str) -> Tensor:
    """Decode a sound file to one channel, averaged and resampled to 16 kHz.

    Args:
        source: A path or a stream.
        where: The file's name in error messages.

    Returns:
        Samples, float32 of shape (n,).

    Raises:
        DataError: soundfile is not installed or cannot read the file, or the file is cut off, has
            no samples, or NaN or Inf among them.
    """
    with _soundfile(where) as library, library.SoundFile(source) as file:
        cut = CUT.search(file.extra_info)
        sound, rate = file.read(dtype="float32", always_2d=True), file.samplerate
    if cut and int(cut["stated"]) < STREAMED and int(cut["stated"]) > int(cut["found"]):
        raise DataError(
            f"{where} is cut off: it states {cut['stated']} bytes of sound and holds {cut['found']}"
        )
    if not len(sound) or not np.isfinite(sound).all():
        raise DataError(f"{where} holds no sound: {len(sound)} samples, or NaN or Inf among them")
    return resample(torch.from_numpy(sound.mean(axis=1)), rate)


def soundfile() -> Any:
    """Import the soundfile library.

    Raises:
        DataError: It is not installed, or does not find libsndfile.
    """
    try:
        import soundfile as library
    except ImportError as error:
        raise DataError(f"recordings need soundfile: {libraries.installing('audio')}") from error
    except OSError as error:
        raise DataError(
            "soundfile finds no libsndfile, which reads files for it: pip install "
            "--force-reinstall soundfile, or install libsndfile with the system's packages"
        ) from error
    return library


@contextlib.contextmanager
def _soundfile(where: str) -> Iterator[Any]:
    """The soundfile library, whose errors inside the block say which file it cannot read."""
    library = soundfile()
    try:
        yield library
    except (OSError, RuntimeError, ValueError) as error:
        kinds = library.available_formats()
        known = [kind for kind in ("WAV", "FLAC", "OGG", "MP3") if kind in kinds]
        raise DataError(
            f"{where} cannot be read: {error}. soundfile {library.__version__} with libsndfile "
            f"{library.__libsndfile_version__} reads {', '.join(known)}; convert it to one of "
            "them, or pip install --upgrade soundfile"
        ) from error
