"""The walls around an adversary's process: limits, capabilities, files, system calls."""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.isolation import files, syscalls

PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_DUMPABLE, SIGKILL = 1, 24, 4, 9
CAPSET = {"x86_64": 126, "aarch64": 91}
CAPABILITIES_V3 = 0x20080522


@dataclass(frozen=True, slots=True)
class Walls:
    """What an adversary's process may use.

    Attributes:
        readable: Files, and folders with all that they hold, that it may read.
        writable: Its empty temporary folder, in which files stay empty, and devices.
        memory: Bytes of memory beyond what the process has to begin with; None: no limit, for
            GPUs, whose drivers map large parts of the address space.
        seconds: CPU seconds.
    """

    readable: Sequence[str]
    writable: Sequence[str]
    memory: int | None
    seconds: int


def standing() -> tuple[str, ...]:
    """The walls that this system has, in words."""
    found = ["memory", "time"]
    if files.version():
        found.append("files")
    if syscalls.supported():
        found += ["network", "processes", "signals"]
    return tuple(found)


def close_in(walls: Walls) -> None:
    """Put this process within walls, for ever. It must have one thread.

    Raises:
        OSError: The system has a wall and could not put it up.
    """
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CPU, walls.seconds)
    if walls.memory is not None:
        _limit(resource.RLIMIT_AS, _address_space() + walls.memory)
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _prctl(libc, PR_SET_DUMPABLE, 0)
    _prctl(libc, syscalls.PR_SET_NO_NEW_PRIVS, 1)
    files.restrict(walls.readable, walls.writable)
    _drop_capabilities(libc)
    syscalls.restrict()


def die_with_parent() -> None:
    """Have Linux kill this process when the one that forked it ends."""
    if sys.platform == "linux":
        _prctl(ctypes.CDLL(None, use_errno=True), PR_SET_PDEATHSIG, SIGKILL)


def _limit(which: int, most: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS has no limit of address space
        resource.setrlimit(which, (most, most))


def _address_space() -> int:
    """Bytes of address space that this process has now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as status:
            return int(status.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _prctl(libc: ctypes.CDLL, what: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    libc.prctl(what, ctypes.c_ulong(value), zero, zero, zero)


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    """Give up the rights of root, if the process has any; its files stay closed anyway."""
    for number in range(64):
        _prctl(libc, PR_CAPBSET_DROP, number)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    libc.syscall(CAPSET.get(os.uname().machine, -1), ctypes.byref(header), ctypes.byref(nothing))
