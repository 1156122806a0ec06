"""Utterances: speaker, transcript and sound, and the choice of those that no client holds."""

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import UNKNOWN
from fedsim.seeds import torch_generator
from fedsim.tasks.speech.features import Features, Header


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """One utterance, whose sound is decoded or synthesised when it is asked for.

    Attributes:
        speaker: The speaker's name.
        text: The normalised transcript.
        sound: Returns the samples, float32 of shape (n,) at 16 kHz, one channel.
        content: Returns bytes that differ if the sound differs, for the fingerprint.
        name: The utterance's name in messages.
        test: Whether it is in the source's test split; None if the source has none.
        header: Returns the header of its file; None if there is no file.
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
        """The number of samples at 16 kHz; the sound is decoded only if there is no header."""
        return len(self.sound()) if self.header is None else self.header().resampled


class Recordings(tuple[Utterance, ...]):
    """The utterances of a data set, compared and hashed by identity so that caches can use them."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speaker of each utterance."""
        return tuple(one.speaker for one in self)

    @property
    def texts(self) -> tuple[str, ...]:
        """The normalised transcript of each utterance."""
        return tuple(one.text for one in self)

    def split(self, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
        """Divide the utterances into a test split and the rest.

        The source's own split is used. A source without one, or with one that leaves a side empty,
        is divided at random.

        Args:
            fraction: The share of utterances in a random test split.
            seed: The run's seed.

        Returns:
            The indices of the test utterances and of the others, int64.
        """
        tests = torch.tensor([bool(one.test) for one in self])
        if tests.any() and not tests.all():
            return tests.nonzero().flatten(), (~tests).nonzero().flatten()
        order = torch.randperm(len(self), generator=torch_generator(seed, "test split"))
        count = min(max(1, round(fraction * len(self))), len(self) - 1)
        return order[:count], order[count:]

    def fingerprint(self) -> str:
        """SHA-256 of speakers, transcripts, the source's split and sound."""
        tests = None if self[0].test is None else tuple(one.test for one in self)
        digest = hashlib.sha256(repr((self.speakers, self.texts, tests)).encode())
        for one in self:
            digest.update(one.content())
        return digest.hexdigest()


@functools.lru_cache(maxsize=4096)
def frames(utterance: Utterance, features: Features) -> Tensor:
    """Compute the frames of an utterance, float32 of shape (T, size).

    They are cached and shared, and must not be written to.
    """
    return features.of(utterance.sound())


def held_out(
    speakers: Sequence[str], fraction: float, each: int | None, known: int | None, seed: int
) -> Tensor:
    """Choose the utterances that no client holds; attacks learn voices from them.

    Args:
        speakers: The speaker of each utterance. Utterances are in random order: the first are
            taken.
        fraction: The share of utterances to choose, of those of the `known` speakers.
        each: The number of utterances to choose of each speaker, instead of a share of all.
        known: The number of speakers that the chosen utterances are of, drawn by the seed; None for
            all.
        seed: The run's seed.

    Returns:
        Which utterances are chosen, bool of shape (N,).

    Raises:
        DataError: There are fewer speakers than `known`, or a speaker would have none left for a
            client.
    """
    names = sorted(set(speakers))
    if known is not None:
        if known > len(names):
            raise DataError(
                f"task.auxiliary_speakers = {known}, and {len(names)} speakers have training "
                "utterances; expected at most that many"
            )
        rng = torch_generator(seed, "auxiliary speakers")
        names = [names[i] for i in torch.randperm(len(names), generator=rng)[:known].tolist()]
    whose = np.array(speakers)
    held = np.isin(whose, names)
    if each is None:
        available = np.flatnonzero(held)
        held[available[int(fraction * len(available)) :]] = False
    else:
        for name in names:
            own = np.flatnonzero(whose == name)
            if len(own) <= each:
                raise DataError(
                    f"speaker '{name}' has {len(own)} training utterances, of which "
                    f"task.auxiliary_utterances = {each} leaves none for a client. Lower it, or "
                    "task.test_fraction"
                )
            held[own[each:]] = False
    return torch.from_numpy(held)


def candidates(public: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """The speakers that an attack can name: those of public utterances, sorted.

    Args:
        public: The speakers of the public utterances.
        others: The speakers of the clients' utterances. If any is not public, `UNKNOWN` is added.

    Returns:
        The names; empty if there are no public speakers.
    """
    names = sorted(set(public) - {UNKNOWN})
    return (*names, UNKNOWN) if names and set(others) - set(names) else tuple(names)
