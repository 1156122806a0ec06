"""Landlock: which files a process may open, and no others; see landlock(7).

Landlock governs opening, making, removing and renaming. It does not hide that a file exists, its
size or its times.
"""

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

CREATE, ADD, RESTRICT = 444, 445, 446
"""Numbers of its system calls, on all machines."""

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8

RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""The number of rights of files, by the first version of Landlock that has them."""

TCP, TCP_SINCE = 0b11, 4
"""Binding and connecting of TCP sockets."""

SCOPES, SCOPES_SINCE = 0b11, 6
"""Abstract Unix sockets and signals, of processes outside."""

READ = EXECUTE | READ_FILE | READ_DIR
"""What is allowed of readable files and folders; shared libraries are mapped as executable."""

IOCTL_DEV = 1 << 15
"""Commands to devices."""

WRITE = (
    WRITE_FILE | READ_FILE | READ_DIR | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | IOCTL_DEV
)

OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | IOCTL_DEV
"""Rights that a file can have; the others are those of folders."""


class _Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`."""

    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def version() -> int:
    """The version of Landlock that the system has; 0 without it."""
    if sys.platform != "linux":
        return 0
    found: int = _libc().syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return max(0, found)


def restrict(readable: Iterable[str | Path], writable: Iterable[str | Path]) -> bool:
    """Allow this thread, and those that it will start, these files alone; it cannot be undone.

    Args:
        readable: Files, and folders with all that they hold. Those that do not exist are left out.
        writable: Folders in which files may be made, written, read and removed.

    Returns:
        Whether the system could.

    Raises:
        OSError: The system has Landlock and refused.
    """
    if not (found := version()):
        return False
    rights = max(bits for since, bits in RIGHTS.items() if since <= found)
    ruleset = _Ruleset(
        (1 << rights) - 1, TCP if found >= TCP_SINCE else 0, SCOPES if found >= SCOPES_SINCE else 0
    )
    size = 24 if found >= SCOPES_SINCE else 16 if found >= TCP_SINCE else 8
    rules = _call(CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for allowed, paths in ((READ, readable), (WRITE, writable)):
            for path in paths:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    _allow(rules, path, allowed & ruleset.files)
        _call(RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)
    return True


def _allow(rules: int, path: str | Path, allowed: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            allowed &= OF_FILES
        beneath = _Beneath(allowed, opened)
        _call(ADD, ctypes.c_int(rules), ctypes.c_int(1), ctypes.byref(beneath), ctypes.c_uint32(0))
    finally:
        os.close(opened)


def _call(number: int, *arguments: object) -> int:
    found: int = _libc().syscall(number, *arguments)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
