"""What is odd about recordings, found before a run from their headers and transcripts."""

import functools
from collections import Counter
from collections.abc import Sequence

import torch

from fedsim.errors import DataError
from fedsim.gradients import frames_needed
from fedsim.tasks.speech.characters import Characters
from fedsim.tasks.speech.data import Recordings, frames
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.voices import RATE

__all__ = ["cautions", "check_lengths"]

LOOKED_AT = 1000
"""Recordings whose headers are read."""

DECODED = 4_000_000
"""Samples that are decoded in search of silence, or trimmed: half a second of work or so."""


@functools.lru_cache(maxsize=4)
def cautions(recordings: Recordings, features: Features) -> tuple[str, ...]:
    """What a user should know of recordings before a run, a sentence each."""
    told = list[str]()
    total = len(recordings)
    if lost := [signs for signs in recordings.lost if signs]:
        signs = ", ".join(sorted(set().union(*lost))[:8])
        told.append(
            f"{len(lost)} of {total} transcripts have characters that are left out ({signs}), "
            "though they may be said: spell them out in words"
        )
    if recordings.header is None:
        return tuple(told)
    headers = [recordings.header(index) for index in range(min(total, LOOKED_AT))]
    of = f"of {total}" if total <= LOOKED_AT else f"of the first {LOOKED_AT}"
    rates = Counter(one.rate for one in headers if one.rate != RATE)
    if rates:
        known = ", ".join(f"{rate} Hz" for rate, _ in rates.most_common(4))
        told.append(f"{rates.total()} {of} recordings are resampled to {RATE} Hz, from {known}")
    if several := sum(one.channels > 1 for one in headers):
        told.append(f"{several} {of} recordings have several channels, which are averaged")
    short = [index for index, one in enumerate(headers) if one.resampled < features.window]
    if short:
        told.append(
            f"{len(short)} {of} recordings are shorter than a window of {features.window} samples "
            f"and filled up with zeros, the first {recordings.name(short[0])}"
        )
    if silent := _silent(recordings, [one.samples for one in headers]):
        told.append(
            f"{len(silent)} of the first recordings are silent: all their frames are equal, and "
            f"say nothing. Leave them out; the first is {recordings.name(silent[0])}"
        )
    return tuple(told)


def check_lengths(
    recordings: Recordings, features: Features, pieces: Characters
) -> tuple[str, ...]:
    """Raises `DataError` where a recording has too few frames for its transcript under CTC.

    Headers tell how many; of what is trimmed, or spoken here, the first recordings are heard.
    Returns a sentence that says how many, where trimming may have left others too short.
    """
    wrong, read, heard = list[tuple[int, int, int]](), 0, 0
    for index in range(min(len(recordings), LOOKED_AT)):
        header = recordings.header(index) if recordings.header is not None else None
        read += header.samples if header is not None else len(recordings.sound(index))
        if (features.trim is not None or header is None) and read <= DECODED:
            count, heard = len(frames(recordings, features, index)), heard + 1
        elif header is not None:
            count = header.frames(features)
        else:
            break
        needed = frames_needed(pieces.encode(recordings.texts[index]))
        if needed > count:
            wrong.append((index, count, needed))
    if wrong:
        index, count, needed = wrong[0]
        trimmed = "" if features.trim is None else f" (task.features.trim is {features.trim:g})"
        raise DataError(
            f"{recordings.name(index)} has {count} frames{trimmed}, and its transcript "
            f"'{recordings.texts[index]}' takes {needed} (one a character, and one between two "
            f"that are equal): its CTC loss would be infinite (recordings like it: {len(wrong)}). "
            f"Use a smaller task.features.stride than {features.stride}, or leave them out"
        )
    if features.trim is None or heard == len(recordings):
        return ()
    return (
        f"{heard} of {len(recordings)} recordings were heard after task.features.trim: others may "
        "have too few frames left for their transcripts, and an infinite CTC loss",
    )


def _silent(recordings: Recordings, samples: Sequence[int]) -> list[int]:
    """Recordings of one value throughout, among the first."""
    found, read = list[int](), 0
    for index, count in enumerate(samples):
        read += count
        if read > DECODED:
            break
        sound = recordings.sound(index)
        if torch.equal(sound.min(), sound.max()):
            found.append(index)
    return found
