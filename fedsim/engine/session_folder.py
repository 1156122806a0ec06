"""The folder of a Ray session that fedsim starts, which Ray leaves behind."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

PREFIX = "fedsim-ray-"

LONGEST = 40
"""Characters of its path: Ray's sockets lie in it, whose paths have at most 107."""

NEW = 60.0
"""Seconds in which a folder may not be locked yet."""


class SessionFolder:
    """A temporary folder that is locked as long as this process lives.

    Making one removes those of processes that were killed.

    Attributes:
        path: The folder; None where its path would be too long, and Ray takes one of its own.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        below = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        _remove_stale(Path(below))
        if len(below) + len(f"/{PREFIX}12345678") <= LONGEST:
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=below))
            self._lock = FileLock(self.path / ".lock", timeout=0)
            self._lock.acquire()

    def close(self) -> None:
        """Remove the folder, once the session has ended."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self._lock.release()


def _remove_stale(below: Path) -> None:
    """Remove the folders of this user whose processes have ended."""
    for folder in below.glob(f"{PREFIX}*"):
        try:
            found = folder.lstat()
            if found.st_uid != os.getuid() or folder.is_symlink():
                continue
            if not (folder / ".lock").exists() and time.time() - found.st_mtime < NEW:
                continue
            with FileLock(folder / ".lock", timeout=0):
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, Timeout):  # of a process that lives, or just removed by another one
            continue


def kill_children(process: psutil.Process) -> None:
    """Kill all processes below one, and wait until they have ended."""
    try:
        children = process.children(recursive=True)
    except psutil.Error:
        return
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    psutil.wait_procs(children, timeout=0.5)
