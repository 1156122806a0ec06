"""Sound files through soundfile: what their headers say, and their samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.libraries import installing
from fedsim.tasks.speech.features import Features, resample
from fedsim.tasks.speech.voices import RATE

__all__ = ["Header", "decode", "read_header", "soundfile"]


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself: samples a second, channels, samples of each."""

    rate: int
    channels: int
    samples: int

    @property
    def resampled(self) -> int:
        """Samples at 16 kHz."""
        return -(-self.samples * RATE // self.rate)

    def frames(self, features: Features) -> int:
        """Frames of it, if nothing is trimmed."""
        return 1 + max(self.resampled, features.window) // features.stride


def read_header(source: Any, where: str) -> Header:
    """The header of a file, by its path or a stream; raises `DataError` as `decode` does."""
    library = soundfile()
    try:
        info = library.info(source)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(where, error) from error
    return Header(int(info.samplerate), int(info.channels), int(info.frames))


def decode(source: Any, where: str) -> Tensor:
    """A recording as one channel (n,) float32 at 16 kHz: averaged, and resampled.

    source: a path, or a stream. where: what a message calls it. Raises `DataError` for what
    soundfile cannot read, and for no samples or NaN or Inf among them.
    """
    library = soundfile()
    try:
        sound, rate = library.read(source, dtype="float32", always_2d=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(where, error) from error
    if not len(sound) or not np.isfinite(sound).all():
        raise DataError(f"{where} holds no sound: {len(sound)} samples, or NaN or Inf among them")
    return resample(torch.from_numpy(sound.mean(axis=1)), rate)


def soundfile() -> Any:
    """The soundfile library.

    Raises:
        DataError: It is not installed, or finds no libsndfile.
    """
    try:
        import soundfile as library
    except ImportError as error:
        raise DataError(f"recordings need soundfile: {installing('audio')}") from error
    except OSError as error:
        raise DataError(
            "soundfile finds no libsndfile, which reads files for it: pip install "
            "--force-reinstall soundfile, or install libsndfile with the system's packages"
        ) from error
    return library


def _unreadable(where: str, error: Exception) -> DataError:
    library = soundfile()
    known = [kind for kind in ("WAV", "FLAC", "OGG", "MP3") if kind in library.available_formats()]
    return DataError(
        f"{where} cannot be read: {error}. soundfile {library.__version__} with libsndfile "
        f"{library.__libsndfile_version__} reads {', '.join(known)}; convert it to one of them, or "
        "pip install --upgrade soundfile"
    )
