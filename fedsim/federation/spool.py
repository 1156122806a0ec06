"""A round's replies on disk, so that many clients with a large model need little memory.

A strategy takes all replies of a round at once, and attacks follow. Replies beyond a share of the
free memory are written to the recording, from which an array is read each time it is used. A
strategy that adds up one client after the other (the weighted means: FedSGD, FedAvg, FedProx,
FedAdam and others) then holds one update in memory, with the values that were sent. One that
compares updates (medians, Krum) or changes them (server-side differential privacy) still holds them
all.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from numpy.typing import NDArray
from torch import Tensor

from fedsim.federation.arrays import LocalArray, TensorArray, group_size
from fedsim.federation.contents import records_of
from fedsim.records import Interception
from fedsim.runs.recording import Recording

LEAST = 256 * 2**20
"""Bytes of a round's replies that stay in memory however little is free."""

FRACTION = 1 / 8
"""The part of the free memory that a round's replies may take."""

CONTAINER = Path("/sys/fs/cgroup")
"""The folder that says what memory a Linux container may take, and takes."""


def memory_limit() -> int:
    """Bytes of a round's replies that stay in memory."""
    free: int = psutil.virtual_memory().available
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        most, taken = (
            int((CONTAINER / name).read_text()) for name in ("memory.max", "memory.current")
        )
        lines = map(str.split, (CONTAINER / "memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
        free = min(free, most - taken + cached)
    return max(LEAST, int(FRACTION * free))


def in_groups(
    replies: Iterable[Message], sent: Iterable[tuple[ArrayRecord, ConfigRecord]]
) -> Iterator[Message]:
    """Take several small replies from their clients before the first of them is read.

    Training one client empties the processor's caches of what reading a reply needs, so that
    reading several in a row takes a fraction of the time.

    Args:
        replies: Makes the replies.
        sent: What clients were sent; replies are about as large.
    """
    source = iter(replies)
    number = next((group_size(arrays) for arrays, _ in sent), 1)
    while group := list(itertools.islice(source, number)):
        yield from group


class Spool:
    """Moves replies of a round to the recording, once `memory_limit` bytes of them are in memory.

    Args:
        recording: The recording. Its files of this round stay until the round is aggregated.
    """

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._taken = 0

    @functools.cached_property
    def _limit(self) -> int:
        """The limit; asking what is free takes a fifth of a millisecond, which few rounds need."""
        return memory_limit()

    def take(self, reply: Message, interception: Interception) -> Interception:
        """Count a reply, and replace its arrays, in place, if the limit is reached.

        Args:
            reply: The reply.
            interception: The interception that was made of it.

        Returns:
            The interception; its tensors are read from disk if the reply's arrays are.

        Raises:
            RunFolderError: The disk is full.
        """
        update, kept = interception.update, records_of(reply.content, ArrayRecord)
        # What another process sent was copied when it was decoded, so that it is in memory twice.
        shared = all(isinstance(a, TensorArray) and a.tensor is not None for a in kept[0].values())
        for held in (update.tensors, update.buffers):
            self._taken += (1 if shared else 2) * sum(one.nbytes for one in held.values())
        if self._taken <= LEAST or self._taken <= self._limit:
            return interception
        tensors = {**update.tensors, **update.buffers}
        stored = self._recording.write(interception)
        self._recording.flush()
        for record in kept:
            for name, array in record.items():
                # Integer counters were turned into floats, and stay in memory as they were sent.
                if str(tensors[name].dtype).removeprefix("torch.") == array.dtype:
                    buffer = name in interception.update.buffers
                    where = stored.update.buffers if buffer else stored.update.tensors
                    record[name] = _Stored(array, where, name)
        return stored


class _Stored(LocalArray):
    """An array of Flower's that is read from a recorded file each time it is used."""

    def __init__(self, array: Array, where: Mapping[str, Tensor], name: str) -> None:
        self.dtype, self.shape, self.stype = array.dtype, array.shape, array.stype
        self._place = where, name

    @property
    def data(self) -> bytes:  # type: ignore[override]
        return Array(self.values).data

    @property
    def values(self) -> NDArray[Any]:
        """The values, as the file is mapped into memory; not to be changed."""
        where, name = self._place
        return where[name].numpy()

    def numpy(self) -> NDArray[Any]:
        """A copy of the values."""
        return self.values.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)
