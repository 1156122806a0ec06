"""Recordings of so many seconds, longer ones cut at their pauses."""

import dataclasses
import functools

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.tasks.speech.data import Recordings
from fedsim.tasks.speech.sound_files import Header
from fedsim.tasks.speech.voices import RATE

__all__ = ["lasting"]

HOP = RATE // 100
QUIET = 30.0
"""Decibels below the loudest stretch of 10 ms at which it is quiet."""

PAUSE = 5
"""Stretches of 10 ms that are quiet in a row at least where a recording is cut."""

WHOLE = slice(None)


@functools.lru_cache(maxsize=8)
def lasting(found: Recordings, seconds: tuple[float, float], cut: bool) -> Recordings:
    """The recordings of so many seconds, from the first number up to the second.

    cut: take longer ones in pieces, each cut in the middle of the longest pause at which it has a
    length that fits; words go to pieces by their share of the transcript's characters, as the
    pieces have of the sound that is not quiet, which is close to what is said there and no
    alignment. Pieces without a word are left out. Where headers tell lengths, only what is cut is
    decoded. Raises `DataError` where fewer than three are left.
    """
    low, high = (round(bound * RATE) for bound in seconds)
    header = found.header
    # Pieces of one recording are asked for one after the other.
    heard = functools.lru_cache(maxsize=1)(found.sound)
    sources, texts = list[tuple[int, slice]](), list[str]()
    for index, text in enumerate(found.texts):
        length = header(index).resampled if header else len(heard(index))
        if low <= length < high:
            sources.append((index, WHOLE))
            texts.append(text)
        elif cut and length >= high:
            for begin, end, words in _pieces(heard(index), text, low, high):
                sources.append((index, slice(begin, end)))
                texts.append(words)
    if len(sources) < 3:
        raise DataError(
            f"of {len(found)} utterances {len(sources)} last {seconds[0]:g} to {seconds[1]:g} s; "
            "expected 3 at least. Widen task.seconds, or cut longer ones with task.cut"
        )

    def sound(index: int) -> Tensor:
        of, part = sources[index]
        return heard(of)[part]

    def content(index: int) -> bytes:
        of, part = sources[index]
        return repr((part.start, part.stop)).encode() + found.content(of)

    def name(index: int) -> str:
        of, part = sources[index]
        if part == WHOLE:
            return found.name(of)
        return f"{found.name(of)} ({part.start / RATE:.2f} to {part.stop / RATE:.2f} s)"

    whose = [of for of, _ in sources]
    return Recordings(
        tuple(found.speakers[of] for of in whose),
        tuple(texts),
        sound,
        content,
        tests=None if found.tests is None else tuple(found.tests[of] for of in whose),
        header=header and (lambda index: _shorter(header(sources[index][0]), sources[index][1])),
        name=name,
        lost=tuple(found.lost[of] for of in whose) if found.lost else (),
    )


def _shorter(whole: Header, part: slice) -> Header:
    """The header of a part, in samples at 16 kHz, of a recording."""
    if part == WHOLE:
        return whole
    return dataclasses.replace(whole, samples=(part.stop - part.start) * whole.rate // RATE)


def _pieces(sound: Tensor, text: str, low: int, high: int) -> list[tuple[int, int, str]]:
    """Where pieces begin and end, in samples, and what is said in each."""
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
