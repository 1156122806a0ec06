"""The lock of a run folder, so that two processes do not write to it at the same time."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from fedsim.errors import RunFolderError
from fedsim.runs.files import make_folder, opened, permissions
from fedsim.runs.tables import not_writable, writing

FILE = ".lock"
HOLDER = ".lock.json"
"""Who holds the lock, for others' messages. The lock itself ends with its process."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock file while the code within runs; it is free again when the process ends.

    Args:
        path: The lock file, which is made with its folder.

    Yields:
        Whether this process holds it; False if another one does.

    Raises:
        RunFolderError: The file cannot be written.
    """
    try:
        make_folder(path.parent)
        # A folder that its owner may not write to is refused by the system, with a clear error.
        lock = FileLock(path, timeout=0, mode=permissions(path.parent) | 0o600)
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        raise not_writable(path.parent, error) from error
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Write to a run folder while no other process does; raises `RunFolderError` otherwise."""
    holder = folder / HOLDER
    with locked(folder / FILE) as ours:
        if not ours:
            raise RunFolderError(
                f"{folder} is being written by {_named(holder)}: wait until it ends, or stop it"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        with writing(holder), opened(holder, "w", encoding="utf-8") as file:
            file.write(text)
        try:
            yield
        finally:
            holder.unlink(missing_ok=True)


def _named(holder: Path) -> str:
    """The process that holds a folder, in words."""
    try:
        found = json.loads(holder.read_text(encoding="utf-8"))
        return f"process {found['pid']} on {found['host']}, since {found['since']}"
    except (OSError, ValueError, TypeError, KeyError):  # it is just starting or ending
        return "another process"
