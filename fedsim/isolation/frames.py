"""Frames between a process and the one that attacks for it: a kind, a length, and bytes.

What comes back from an adversary's process is JSON and safetensors, never pickle, and is bounded.
"""

import json
import math
import os
import select
import struct
import time
from typing import Any

HEAD = struct.Struct(">cQ")
"""The kind, and the number of bytes that follow."""

BEGAN, PROGRESS, RESULT, ERROR = b"b", b"p", b"r", b"e"
"""Kinds that come back; a request has none of its own."""

REQUEST = b"q"

MOST = 64 * 2**20
"""Largest number of bytes of a result."""

MOST_BESIDE = 2**18
"""Largest number of bytes of a report of progress, and of an error."""

LONGEST_WAIT = 1000.0
"""Seconds of the longest wait at once."""


class TooLong(Exception):
    """A frame is longer than `MOST` or `MOST_BESIDE`."""


class Silent(Exception):
    """Nothing came before the time that was given."""


def send(channel: int, kind: bytes, *parts: bytes | memoryview) -> None:
    """Write a frame to a file descriptor.

    Raises:
        OSError: The other end is closed.
    """
    whole = [HEAD.pack(kind, sum(map(len, parts))), *parts]
    for part in whole:
        left = memoryview(part)
        while left:
            left = left[os.write(channel, left) :]


def send_json(channel: int, kind: bytes, value: Any) -> None:
    """Write a frame that holds JSON."""
    send(channel, kind, json.dumps(value).encode())


def receive(
    channel: int, *, most: int | None = MOST, until: float | None = None
) -> tuple[bytes, bytes]:
    """Read a frame from a file descriptor.

    Args:
        channel: The descriptor.
        most: Largest number of bytes of a result; None: a frame of any kind and length.
        until: `time.monotonic()` at which to give up; None: never.

    Returns:
        The kind and the content.

    Raises:
        EOFError: The other end was closed.
        Silent: The time is over.
        TooLong: The frame announces more bytes.
    """
    kind, length = HEAD.unpack(_exactly(channel, HEAD.size, until))
    if most is not None and kind != RESULT:
        most = min(most, MOST_BESIDE)
    if most is not None and length > most:
        raise TooLong(f"{length} bytes, at most {most}")
    return kind, _exactly(channel, length, until)


def _exactly(channel: int, size: int, until: float | None) -> bytes:
    found = bytearray()
    ready = select.poll()  # `select.select` takes no descriptors beyond 1023
    ready.register(channel, select.POLLIN)
    while len(found) < size:
        if until is not None:
            left = until - time.monotonic()
            if left <= 0:
                raise Silent
            if not ready.poll(math.ceil(min(left, LONGEST_WAIT) * 1000)):
                continue
        try:
            part = os.read(channel, min(size - len(found), 2**20))
        except ConnectionError as error:
            raise EOFError from error
        if not part:
            raise EOFError
        found += part
    return bytes(found)
