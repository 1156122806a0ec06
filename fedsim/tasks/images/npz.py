"""Images and labels of npz files: headers are read first, then labels, and images last."""

import functools
import lzma
import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import psutil
from numpy.lib import format as npy

from fedsim.tasks.images.arrays import EXPECTED, NAMES, Array, Arrays, stored_arrays
from fedsim.tasks.local_data import reading

IMAGES = ("x", "x_train", "x_test")
"""Names of arrays of images."""
COPIES = 2
"""Copies of the images in memory: as numpy reads them, and as a contiguous tensor."""
LABEL_BYTES = 8
"""Bytes of a label, an int64."""
LONGEST_NAMES = 2**26
"""The largest number of bytes of the names of labels."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an array in the archive says.

    Attributes:
        member: The file in the archive.
        shape: The shape of the array.
        dtype: The type of its values.
    """

    member: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize


@functools.lru_cache(maxsize=2)
def npz_arrays(path: Path, written: int) -> Arrays:
    """The content of an npz file, read once in a process and never written to.

    Args:
        path: The file.
        written: When it was last changed, so that a changed file is read again.

    Raises:
        DataError: It cannot be read, or holds something else than images and their labels.
    """
    with reading(path), path.open("rb") as file:
        if not zipfile.is_zipfile(file):  # numpy would take it for a pickle
            raise ValueError(f"it is no npz file; expected one with {EXPECTED}")
        try:
            with zipfile.ZipFile(file) as archive:
                return _arrays(archive, str(path))
        except (RuntimeError, zlib.error, lzma.LZMAError) as error:  # encrypted, or broken
            raise ValueError(str(error)) from error


def _arrays(archive: zipfile.ZipFile, where: str) -> Arrays:
    headers = {}
    for member in archive.infolist():
        with archive.open(member) as content:
            if (header := _header(content, member)) is not None:
                headers[member.filename.removesuffix(".npy")] = header

    def read(name: str) -> Array:
        with archive.open(headers[name].member) as content:
            found: Array = npy.read_array(content, allow_pickle=False)
            return found

    images = [headers[name] for name in IMAGES if name in headers]
    needed = sum(COPIES * one.nbytes + LABEL_BYTES * math.prod(one.shape[:1]) for one in images)
    there = psutil.virtual_memory().total
    if needed > there:
        raise MemoryError(
            f"its images need {needed / 2**30:,.0f} GiB; this machine has {there / 2**30:,.0f}"
        )
    for name in headers.keys() & {*NAMES}:
        if (size := headers[name].nbytes) > LONGEST_NAMES:
            raise MemoryError(f"{name} has {size} bytes, expected {LONGEST_NAMES} at most")
    return stored_arrays(headers, read, where)


def _header(content: IO[bytes], member: zipfile.ZipInfo) -> Header | None:
    """Read the header of an array; None for another file; raises `ValueError` if it is not true."""
    if content.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return None
    content.seek(0)
    version = npy.read_magic(content)
    # Version 3 differs from 2 in the names of fields alone, which no image and no label has.
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(content)
    header = Header(member, shape, dtype)
    stored = member.file_size - content.tell()
    if not dtype.hasobject and stored < header.nbytes:
        raise ValueError(
            f"the header of {member.filename} claims {header.nbytes} bytes, and {stored} follow"
        )
    return header
