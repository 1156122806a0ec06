"""Sound files, read by soundfile: their headers and their samples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.libraries import installing
from fedsim.tasks.speech.features import Features, resample
from fedsim.tasks.speech.voices import RATE


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
        return 1 + max(self.resampled, features.window) // features.stride


def read_header(source: Any, where: str) -> Header:
    """Read the header of a sound file.

    Args:
        source: A path or a stream.
        where: The file's name in error messages.

    Raises:
        DataError: soundfile is not installed or cannot read the file.
    """
    library = soundfile()
    try:
        info = library.info(source)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(where, error) from error
    return Header(int(info.samplerate), int(info.channels), int(info.frames))


def decode(source: Any, where: str) -> Tensor:
    """Decode a sound file to one channel, averaged and resampled to 16 kHz.

    Args:
        source: A path or a stream.
        where: The file's name in error messages.

    Returns:
        Samples, float32 of shape (n,).

    Raises:
        DataError: soundfile is not installed or cannot read the file, or the file has no samples,
            or NaN or Inf among them.
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
    """Import the soundfile library.

    Raises:
        DataError: It is not installed, or does not find libsndfile.
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
