"""What another process makes of the same code."""

import os
import subprocess
import sys
from pathlib import Path

from support.commands import python


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
