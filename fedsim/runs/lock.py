"""The lock of a run folder, so that two processes do not write to it at the same time."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedsim.errors import RunFolderError

FILE = ".lock"


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
    lock = FileLock(path, timeout=0)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        yield False
        return
    except OSError as error:
        raise RunFolderError(
            f"{path.parent} cannot be written: {error.strerror}. Choose another --out"
        ) from error
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Write to a run folder while no other process does; raises `RunFolderError` otherwise."""
    with locked(folder / FILE) as ours:
        if not ours:
            raise RunFolderError(
                f"{folder} is being written by another process: wait until it ends, or stop it"
            )
        yield
