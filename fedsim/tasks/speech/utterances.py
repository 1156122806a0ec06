"""Utterances: speaker, transcript and sound, which is decoded when it is asked for."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.seeds import torch_generator
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.sound_files import Header

__all__ = ["Recordings", "Utterance", "frames"]


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One utterance, whose sound is read, or spoken, when it is asked for.

    Attributes:
        speaker: Who speaks.
        text: The transcript, plain.
        sound: Returns the samples, float32 of shape (n,) at 16 kHz, one channel.
        content: Returns bytes by which a change of the sound shows.
        name: What a message calls it.
        test: Whether it is in the source's test split; None where the source has none.
        header: Returns what its file says of itself; None where there is no file.
        dropped: The spoken characters that normalisation removed from its transcript.
    """

    speaker: str
    text: str
    sound: Callable[[], Tensor]
    content: Callable[[], bytes]
    name: str
    test: bool | None = None
    header: Callable[[], Header] | None = None
    dropped: frozenset[str] = frozenset()

    @property
    def samples(self) -> int:
        """Its length at 16 kHz; decoded only where no header says."""
        return len(self.sound()) if self.header is None else self.header().resampled


class Recordings(tuple[Utterance, ...]):
    """The utterances of a data set; equal and hashed by identity, so that they can be cached by."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__

    @property
    def speakers(self) -> tuple[str, ...]:
        """Who speaks, one an utterance."""
        return tuple(one.speaker for one in self)

    @property
    def texts(self) -> tuple[str, ...]:
        """The transcripts."""
        return tuple(one.text for one in self)

    def split(self, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        """Indices (int64) of the test utterances and of the rest: the source's own split, else
        the given share, drawn by the seed, where it has none or leaves one of the two empty."""
        tests = torch.tensor([bool(one.test) for one in self])
        if tests.any() and not tests.all():
            return tests.nonzero().flatten(), (~tests).nonzero().flatten()
        order = torch.randperm(len(self), generator=torch_generator(seed, "test split"))
        count = min(max(1, round(fraction * len(self))), len(self) - 1)
        return order[:count], order[count:]

    def fingerprint(self) -> str:
        """SHA-256 of speakers, transcripts and sound."""
        tests = None if self[0].test is None else tuple(one.test for one in self)
        digest = hashlib.sha256(repr((self.speakers, self.texts, tests)).encode())
        for one in self:
            digest.update(one.content())
        return digest.hexdigest()


@functools.lru_cache(maxsize=4096)
def frames(utterance: Utterance, features: Features) -> Tensor:
    """Frames (T, size) of an utterance; shared, so that nobody may write to them."""
    return features.of(utterance.sound())
