"""Updates that wait on disk: a round of many clients and a large model needs no more memory.

A strategy wants all replies of a round at once, and attacks come after it. So replies stay what
they are, but what their arrays hold is read when it is asked for. A strategy that adds up one
client after the other (the weighted means: FedSGD, FedAvg, FedProx, FedAdam and their kin) then
has one update in memory, of the very bytes that were sent. One that compares them (medians, Krum)
or changes them (server-side differential privacy) still has them all.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from fedsim.records import Update
from fedsim.runs.ledger import writing

__all__ = ["HELD", "Spool", "waiting"]

HELD = 256 * 2**20
"""Bytes of a round's replies that are held in memory (as sent, and once more as tensors that are
attacked); those that come later wait on disk."""


class Spool:
    """The replies of one round: the first `HELD` bytes stay in memory, the others go to a file.

    folder: where the file is made. It has no name, and is gone with the last reply or attack that
    reads from it, or with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0
        self._file: _File | None = None

    def take(self, reply: Message) -> None:
        """Count a reply in; move its arrays to disk, in place, if too much is held already.

        Raises `RunFolderError` where the disk is full.
        """
        records = list(reply.content.array_records.values())
        self._taken += sum(record.count_bytes() for record in records)
        if self._taken <= HELD:
            return
        self._file = self._file or _File(self._folder)
        # In the record itself: `array_records` leaves copies of its references to Python's garbage
        # collection, which counts objects and not bytes.
        for record in records:
            for name, array in record.items():
                record[name] = self._file.store(array)


def waiting(update: Update, reply: Message) -> Update:
    """The update that was read from a reply, its tensors on disk if the reply's arrays are."""
    (record,) = reply.content.array_records.values()
    if not all(isinstance(array, _Stored) for array in record.values()):
        return update
    return update.replace(
        tensors=_Waiting(record, update.tensors), buffers=_Waiting(record, update.buffers)
    )


class _File:
    """A nameless file of arrays, one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with writing(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - outlives this call

    def store(self, array: Array) -> "_Stored":
        with writing(self._folder):
            at = self._file.seek(0, 2)
            size = self._file.write(array.data)
            self._file.flush()
        return _Stored(array, self, at, size)

    def read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size)


class _Stored(Array):
    """An array of Flower's whose bytes are read from a file whenever they are asked for."""

    def __init__(self, array: Array, file: _File, at: int, size: int) -> None:
        self.dtype, self.shape, self.stype = array.dtype, array.shape, array.stype
        self._place = file, at, size

    @property
    def data(self) -> bytes:  # type: ignore[override]
        file, at, size = self._place
        return file.read(at, size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


class _Waiting(Mapping[str, Tensor]):
    """The tensors of a record, read from disk at each access; sent elsewhere, a plain dict."""

    def __init__(self, record: ArrayRecord, tensors: Mapping[str, Tensor]) -> None:
        self._arrays = {name: (record[name], value.dtype) for name, value in tensors.items()}

    def __getitem__(self, name: str) -> Tensor:
        array, dtype = self._arrays[name]
        return torch.from_numpy(array.numpy()).to(dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
