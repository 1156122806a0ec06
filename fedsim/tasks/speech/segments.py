"""Selection of recordings by duration; longer ones are cut at their pauses."""

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.tasks.speech.features import Header
from fedsim.tasks.speech.utterances import Recordings, Utterance
from fedsim.tasks.speech.voices import RATE

HOP = RATE // 100
QUIET = 30.0
"""A stretch of 10 ms is quiet if it is this many dB below the loudest one."""

PAUSE = 5
"""The smallest number of quiet stretches in a row that make a pause."""

WHOLE = slice(None)


@functools.lru_cache(maxsize=8)
def select_by_duration(found: Recordings, seconds: tuple[float, float], cut: bool) -> Recordings:
    """Select the recordings whose duration lies in a range.

    With `cut`, longer recordings are cut into pieces, each in the middle of the longest pause that
    gives it a permitted duration. The words of the transcript are divided in proportion: a piece
    gets the share of the transcript's characters that it has of the sound that is not quiet. This
    comes close to what is said in the piece, but is no alignment. Pieces without a word are left
    out. If durations are known from headers, only recordings that are cut are decoded.

    Args:
        found: The recordings.
        seconds: The smallest duration, and the upper bound, which is excluded, in seconds.
        cut: Whether to cut longer recordings.

    Raises:
        DataError: Fewer than three utterances are left.
    """
    low, high = (round(bound * RATE) for bound in seconds)

    # The pieces of a recording are read one after the other, so one sound is kept.
    @functools.lru_cache(maxsize=1)
    def sound_of(one: Utterance) -> Tensor:
        return one.sound()

    kept = list[Utterance]()
    for one in found:
        length = len(sound_of(one)) if one.header is None else one.samples
        if low <= length < high:
            kept.append(_part(one, WHOLE, one.text, sound_of))
        elif cut and length >= high:
            for begin, end, words in _pieces(sound_of(one), one.text, low, high):
                kept.append(_part(one, slice(begin, end), words, sound_of))
    if len(kept) < 3:
        raise DataError(
            f"of {len(found)} utterances {len(kept)} last {seconds[0]:g} to {seconds[1]:g} s; "
            "expected 3 at least. Widen task.seconds, or cut longer ones with task.cut"
        )
    return Recordings(kept)


def _part(
    whole: Utterance, part: slice, words: str, sound_of: Callable[[Utterance], Tensor]
) -> Utterance:
    """A part of an utterance, in samples at 16 kHz, and the words said in it."""
    name, header = whole.name, whole.header
    if part != WHOLE:
        name = f"{name} ({part.start / RATE:.2f} to {part.stop / RATE:.2f} s)"
    return replace(
        whole,
        text=words,
        sound=lambda: sound_of(whole)[part],
        content=lambda: repr((part.start, part.stop)).encode() + whole.content(),
        name=name,
        header=header and (lambda: _shorter(header(), part)),
    )


def _shorter(header: Header, part: slice) -> Header:
    if part == WHOLE:
        return header
    return replace(header, samples=(part.stop - part.start) * header.rate // RATE)


def _pieces(sound: Tensor, text: str, low: int, high: int) -> list[tuple[int, int, str]]:
    """The first and last sample of each piece of a sound, and its words."""
    whole = sound[: len(sound) // HOP * HOP].view(-1, HOP)
    energy = whole.square().mean(dim=1)
    loud = energy > energy.max() * 10 ** (-QUIET / 10)
    said = torch.cat([torch.zeros(1), loud.cumsum(0) / max(1, int(loud.sum()))])
    pauses, run = list[tuple[int, int]](), 0
    for at, one in enumerate([*loud.tolist(), True]):
        if one and run >= PAUSE:
            pauses.append((run, at - run // 2))
        run = 0 if one else run + 1
    found, begin = list[tuple[int, int, str]](), 0
    places = [at for _, at in pauses] + [len(loud)]
    while begin < len(loud):
        fitting = [one for one in pauses if low <= (one[1] - begin) * HOP < high]
        if low <= (len(loud) - begin) * HOP < high:
            end = len(loud)
        elif fitting:
            end = max(fitting)[1]
        else:
            begin = next((at for at in places if at > begin), len(loud))
            continue
        if words := _between(text, float(said[begin]), float(said[end])):
            found.append((begin * HOP, end * HOP, words))
        begin = end
    return found


def _between(text: str, begin: float, end: float) -> str:
    """The words of a text whose middle lies between two shares of its characters."""
    words, at, kept = text.split(" "), 0, []
    for word in words:
        if begin <= (at + len(word) / 2) / len(text) < end:
            kept.append(word)
        at += len(word) + 1
    return " ".join(kept)
