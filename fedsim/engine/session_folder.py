"""The folder of a Ray session that fedsim starts, which Ray leaves behind."""

import contextlib
import time
from pathlib import Path

import psutil

from fedsim.temporary import RAY, TemporaryFolder, below, remove_stale

LONGEST = 40
"""Characters of its path: Ray's sockets lie in it, whose paths have at most 107."""

ENDS_WITHIN = 5.0
"""Seconds in which a process that was killed has to end."""


class SessionFolder:
    """A temporary folder that is locked as long as this process lives.

    Attributes:
        path: The folder; None where its path would be too long, and Ray takes one of its own.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._folder: TemporaryFolder | None = None
        if len(below(RAY)) + len(f"/{RAY}12345678") <= LONGEST:
            self._folder = TemporaryFolder(RAY)
            self.path = self._folder.path

    def close(self) -> None:
        """Remove the folder, and those of the session's processes, once the session has ended."""
        if self._folder is not None:
            self._folder.close()
        remove_stale()


def kill_children(process: psutil.Process) -> None:
    """Kill all processes below one, and wait until they have ended."""
    try:
        children = process.children(recursive=True)
    except psutil.Error:
        return
    for child in children:
        with contextlib.suppress(psutil.Error):
            child.kill()
    wait_for(children)


def wait_for(processes: list[psutil.Process]) -> None:
    """Wait a while until processes have ended, whether or not anybody has asked how."""
    deadline = time.monotonic() + ENDS_WITHIN
    while any(map(_runs, processes)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
