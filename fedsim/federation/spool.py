"""A round's updates on disk, so that many clients with a large model need little memory.

A strategy takes all replies of a round at once, and attacks follow. Replies beyond a limit keep
their arrays on disk, and an array is read each time it is used. A strategy that adds up one client
after the other (the weighted means: FedSGD, FedAvg, FedProx, FedAdam and others) then holds one
update in memory, with exactly the bytes that were sent. One that compares updates (medians, Krum)
or changes them (server-side differential privacy) still holds them all.
"""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from fedsim.records import Update
from fedsim.runs.ledger import writing

HELD = 256 * 2**20
"""Bytes of a round's replies that stay in memory, as sent and again as the attacked tensors."""


class Spool:
    """Moves the replies of one round to a file, once `HELD` bytes of them are in memory.

    Args:
        folder: Where the file is made. It has no name, and is deleted with the last reply or attack
            that reads from it, or with the process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = 0
        self._file: IO[bytes] | None = None

    def take(self, reply: Message) -> None:
        """Count a reply, and move its arrays to disk, in place, if the limit is reached.

        Args:
            reply: The reply.

        Raises:
            RunFolderError: The disk is full.
        """
        records = list(reply.content.array_records.values())
        self._taken += sum(record.count_bytes() for record in records)
        if self._taken <= HELD:
            return
        with writing(self._folder):
            file = self._file = self._file or tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            # In the record itself: `array_records` leaves copies of its references to Python's
            # garbage collection, which counts objects and not bytes.
            for record in records:
                for name, array in record.items():
                    record[name] = _Stored(array, file, file.seek(0, 2), file.write(array.data))
            file.flush()


def waiting(update: Update, reply: Message) -> Update:
    """The update of a reply, with its tensors on disk if the reply's arrays are."""
    (record,) = reply.content.array_records.values()
    if not all(isinstance(array, _Stored) for array in record.values()):
        return update
    return update.replace(
        tensors=_Waiting(record, update.tensors), buffers=_Waiting(record, update.buffers)
    )


class _Stored(Array):
    """An array of Flower's whose bytes are read from a file each time they are used."""

    def __init__(self, array: Array, file: IO[bytes], at: int, size: int) -> None:
        self.dtype, self.shape, self.stype = array.dtype, array.shape, array.stype
        self._place = file, at, size

    @property
    def data(self) -> bytes:  # type: ignore[override]
        file, at, size = self._place
        file.seek(at)
        return file.read(size)

    def __reduce__(self) -> tuple[Any, ...]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


class _Waiting(Mapping[str, Tensor]):
    """The tensors of a record, read from disk at each access; pickled as a plain dict."""

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
