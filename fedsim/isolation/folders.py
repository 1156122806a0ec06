"""Temporary folders of children, whatever these made in them."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

PREFIX = "fedsim-isolation-"
"""Of the names of temporary folders; the number of the process follows."""


def new() -> str:
    """A new folder for temporary files of children; those of processes that were killed go."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        owner = left.name.removeprefix(PREFIX).partition("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove(str(left))
    return tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")


def remove(folder: str) -> None:
    """Remove a folder as far as that is possible, also if folders in it lie thousands deep."""
    with contextlib.suppress(OSError):  # it is gone, or another user's
        _flatten(folder)
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)


def _flatten(folder: str) -> None:
    """Leave no folder within a folder of a folder, for `shutil.rmtree` goes down by recursion."""
    left = _folders(folder)
    while left:
        for inner in _folders(left.pop()):
            left.append(tempfile.mkdtemp(dir=folder))
            os.rename(inner, left[-1])


def _folders(folder: str) -> list[str]:
    """The folders in a folder, made readable."""
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for path in found:
        os.chmod(path, 0o700)
    return found
