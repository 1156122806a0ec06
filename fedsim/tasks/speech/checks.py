"""Checks of recordings before a run, from their headers and transcripts."""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence

import torch

from fedsim.errors import DataError
from fedsim.gradients import frames_needed
from fedsim.tasks.speech.features import Features, Header
from fedsim.tasks.speech.utterances import Recordings, Utterance, frames
from fedsim.tasks.speech.voices import RATE
from fedsim.tasks.wordpieces import Pieces

LOOKED_AT = 1000
"""The largest number of recordings whose headers are read."""

DECODED = 4_000_000
"""The largest number of samples that are decoded to find silence or to trim; about half a second of
work."""


@functools.lru_cache(maxsize=4)
def cautions(recordings: Recordings, features: Features) -> tuple[str, ...]:
    """What a user should know about recordings before a run, one sentence each."""
    found = list[str]()
    total = len(recordings)
    if dropped := [one.dropped for one in recordings if one.dropped]:
        signs = ", ".join(sorted(set().union(*dropped))[:8])
        found.append(
            f"{len(dropped)} of {total} transcripts have characters that are left out ({signs}), "
            "though they may be spoken: spell them out in words"
        )
    headers = [one.header() for one in recordings[:LOOKED_AT] if one.header is not None]
    if not headers:
        return tuple(found)
    of = f"of {total}" if total <= LOOKED_AT else f"of the first {LOOKED_AT}"
    rates = Counter(one.rate for one in headers if one.rate != RATE)
    if rates:
        known = ", ".join(f"{rate} Hz" for rate, _ in rates.most_common(4))
        found.append(f"{rates.total()} {of} recordings are resampled to {RATE} Hz, from {known}")
    if several := sum(one.channels > 1 for one in headers):
        found.append(f"{several} {of} recordings have several channels, which are averaged")
    short = [index for index, one in enumerate(headers) if one.resampled < features.window]
    if short:
        found.append(
            f"{len(short)} {of} recordings are shorter than a window of {features.window} samples "
            f"and filled up with zeros, the first {recordings[short[0]].name}"
        )
    if silent := _silent(recordings, headers):
        found.append(
            f"{len(silent)} of the first recordings are silent: all their frames are equal, "
            f"without information. Leave them out; the first is {silent[0].name}"
        )
    return tuple(found)


def check_lengths(recordings: Recordings, features: Features, pieces: Pieces) -> tuple[str, ...]:
    """Check that recordings have enough frames for their transcripts under CTC.

    The number of frames follows from a recording's header. Recordings that are trimmed or have no
    header are decoded, but only the first ones.

    Args:
        recordings: The recordings.
        features: How sound becomes frames.
        pieces: The characters.

    Returns:
        A sentence that says how many were checked, if trimming may have left others too short.

    Raises:
        DataError: A recording has too few frames.
    """
    wrong, read, decoded = list[tuple[Utterance, int, int]](), 0, 0
    for one in recordings[:LOOKED_AT]:
        header = None if one.header is None else one.header()
        read += len(one.sound()) if header is None else header.samples
        if (features.trim is not None or header is None) and read <= DECODED:
            count, decoded = len(frames(one, features)), decoded + 1
        elif header is not None:
            count = header.frames(features)
        else:
            break
        needed = frames_needed(pieces.encode(one.text))
        if needed > count:
            wrong.append((one, count, needed))
    if wrong:
        one, count, needed = wrong[0]
        trimmed = "" if features.trim is None else f" (task.features.trim is {features.trim:g})"
        raise DataError(
            f"{one.name} has {count} frames{trimmed}, and its transcript "
            f"'{one.text}' takes {needed} (one a character, and one between two "
            f"that are equal): its CTC loss would be infinite (recordings like it: {len(wrong)}). "
            f"Use a smaller task.features.stride than {features.stride}, or leave them out"
        )
    if features.trim is None or decoded == len(recordings):
        return ()
    return (
        f"{decoded} of {len(recordings)} recordings were decoded and trimmed (task.features.trim): "
        "others may have too few frames left for their transcripts, and an infinite CTC loss",
    )


def _silent(recordings: Recordings, headers: Sequence[Header]) -> list[Utterance]:
    """The recordings whose samples all have one value, among the first."""
    read = itertools.accumulate(header.samples for header in headers)
    first = (one for one, samples in zip(recordings, read, strict=False) if samples <= DECODED)
    return [one for one in first if torch.equal(*torch.aminmax(one.sound()))]
