"""Temporary folders, which the next run removes if the process that made them was killed."""

import contextlib
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from fedsim.errors import EngineError

ISOLATION = "fedsim-isolation-"
"""Beginning of the names of folders of isolated adversaries."""

RAY = "fedsim-ray-"
"""Beginning of the names of folders of Ray's sessions."""

NEW = 60.0
"""Seconds in which a folder may not be locked yet."""

TRIES = 20
"""How often a temporary folder is made until one is locked."""

ENDS_WITHIN = 5.0
"""Seconds in which processes that were killed have to end."""

_kept = ""


def keep_in(folder: str) -> None:
    """Make folders of isolated adversaries of this process in another folder, if it is not empty.

    Args:
        folder: One that another process removes when it ends, or is removed when that is killed.
    """
    global _kept
    _kept = folder


class TemporaryFolder:
    """A temporary folder that is locked as long as this process lives.

    Making one removes those of processes that were killed.

    Args:
        prefix: `ISOLATION` or `RAY`.

    Attributes:
        path: The folder.
    """

    def __init__(self, prefix: str) -> None:
        remove_stale()
        for _ in range(TRIES):
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=below(prefix)))
            self._lock = FileLock(self.path / ".lock", timeout=0, thread_local=False)
            # Before it is locked, another process may take it for a stale one and remove it.
            with contextlib.suppress(Timeout):
                self._lock.acquire()
                if (self.path / ".lock").exists():
                    return
                self._lock.release()
        raise EngineError(
            f"no temporary folder in {below(prefix)} can be locked: other processes remove what is "
            "made there. Set TMPDIR to another folder"
        )

    def close(self) -> None:
        """Remove the folder."""
        remove(self.path)
        self._lock.release()


def below(prefix: str) -> str:
    """The folder in which temporary folders are made."""
    other = _kept if prefix == ISOLATION else os.environ.get("RAY_TMPDIR")
    return other or tempfile.gettempdir()


def remove_stale() -> None:
    """Remove the temporary folders of this user whose processes have ended.

    A lock tells that, and not the number of a process, which another process may have by now, on
    this machine or on another one that shares the folder.
    """
    for prefix in (ISOLATION, RAY):
        for folder in Path(below(prefix)).glob(f"{prefix}*"):
            with contextlib.suppress(OSError, Timeout):  # locked, or just removed by another one
                if _may_be_stale(folder):
                    with FileLock(folder / ".lock", timeout=0):
                        if prefix == RAY:
                            _end_ray(folder)
                        remove(folder)


def _end_ray(folder: Path) -> None:
    """End the processes of the Ray session in a folder, which outlive a killed one by seconds."""
    deadline = time.monotonic() + ENDS_WITHIN
    while (left := _of_ray(folder)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.05)


def _of_ray(folder: Path) -> list[psutil.Process]:
    """Ray's own programs whose command line names the session; its workers end with them."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or [])
        if f"{folder}/session_" in words and "/ray/" in words:
            found.append(process)
    return found


def _may_be_stale(folder: Path) -> bool:
    """Whether it is a folder of this user, and no link, that is or was locked, or is old."""
    found = folder.lstat()
    user = os.getuid() if hasattr(os, "getuid") else 0  # what Windows states of all files
    old = time.time() - found.st_mtime > NEW
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == user
    return ours and (old or (folder / ".lock").exists())


def remove(folder: Path) -> None:
    """Remove a folder as far as that is possible, also if folders in it lie thousands deep."""
    with contextlib.suppress(OSError):  # it is gone, or another user's
        _flatten(folder)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir():  # Ray's processes end after the one that was killed, and still write
        with contextlib.suppress(OSError):
            (folder / ".lock").touch()  # which nobody holds, so that the next time removes it


def _flatten(folder: Path) -> None:
    """Leave no folder within a folder of a folder, for `shutil.rmtree` goes down by recursion."""
    left = _folders(folder)
    while left:
        for inner in _folders(left.pop()):
            left.append(Path(tempfile.mkdtemp(dir=folder)))
            os.rename(inner, left[-1])


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, made readable."""
    with os.scandir(folder) as entries:
        found = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in found:
        path.chmod(0o700)
    return found
