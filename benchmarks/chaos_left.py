"""What a trial of chaos.py left behind: processes, folders, and files of shared memory."""

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")  # noqa: S108 - looked at alone
"""Where files of shared memory lie on Linux."""
SECONDS = 5.0
"""How long no process may have used such a file until it counts as left behind."""


def marked(mark: str) -> list[int]:
    """Processes whose environment has a mark."""
    found = []
    for process in psutil.process_iter(["pid"]):
        with contextlib.suppress(psutil.Error, OSError):
            if mark in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def shared_memory() -> set[str]:
    """Names of the files in the machine's shared memory; none where it has no such folder."""
    return {path.name for path in SHARED.iterdir()} if SHARED.is_dir() else set()


def held_memory() -> set[str]:
    """Those that a living process, of whomever, has open or mapped."""
    found, start = set(), f"{SHARED}/"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            maps = (process / "maps").read_text(errors="replace")
            found |= {*maps.splitlines()}
            for file in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(os.readlink(file))
    return {line.partition(start)[2].partition("/")[0] for line in found if start in line}


def left_in_memory(before: set[str]) -> list[str]:
    """Files that came to shared memory, and that for `SECONDS` no living process has used.

    If other chaos runs on the machine, one of these may be of a process that it has killed.

    Args:
        before: The names of those that were there.
    """
    deadline, left = time.monotonic() + SECONDS, shared_memory() - before
    while left and (left := left & shared_memory() - held_memory()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return sorted(left)


def left_behind(temporary: Path, mark: str, memory: set[str]) -> str:
    """Processes, folders and shared memory that a trial left; processes get some seconds to end.

    Args:
        temporary: The folder for its temporary files.
        mark: The mark of its processes, see `marked`.
        memory: The names of the files that were in shared memory before it.
    """
    deadline = time.monotonic() + 30
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    for number in left:
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
    names = [path.name for path in temporary.iterdir()]
    folders = [name for name in names if name.startswith(("fedsim", "ray", "tmp"))]
    for name in folders:
        shutil.rmtree(temporary / name, ignore_errors=True)
    said = [f"{len(left)} processes left behind"] if left else []
    said += [f"folders left behind: {', '.join(folders)}"] if folders else []
    if files := left_in_memory(memory):
        said.append(f"shared memory left behind: {', '.join(files)}")
    return "; ".join(said)
