"""What another process makes of the same code, and the end of whole trees of processes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import python

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="ends processes by /proc"
)


def marked(mark: str) -> list[tuple[int, str]]:
    """Number and command of every process that inherited an environment with this mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append((int(process.name), command.decode(errors="replace")))
    return found


def kill_marked(mark: str) -> None:
    """Kill every process that inherited an environment with this mark."""
    for number, _ in marked(mark):
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)


def elsewhere(code: str) -> str:
    """What `code` prints in a process of its own; raises where it fails."""
    return _printed(python("-c", code, folder=Path.cwd(), env=os.environ))


def fresh_python(code: str) -> str:
    """The same in a Python that starts with the code, and has not imported a library before."""
    command = [sys.executable, "-c", code]
    return _printed(subprocess.run(command, capture_output=True, text=True))


def _printed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
