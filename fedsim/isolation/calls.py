"""One call of an adversary in a process of its own: its result, its error, or how it ended."""

import contextlib
import functools
import json
import math
import pickle
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from fedsim import errors, plugin
from fedsim.adversary import Adversary
from fedsim.errors import AttackTimeout, FedsimError
from fedsim.isolation import frames, process
from fedsim.isolation.child import Call, Surroundings
from fedsim.isolation.sending import models, named, pickled, sources, weights
from fedsim.isolation.walls import Walls
from fedsim.libraries import NO_MEMORY
from fedsim.references import search_folders

REPEATS = 2
"""How often a call is repeated after the server died."""

SETTLES_WITHIN = 60.0
"""Seconds in which a child has to import its adversary."""

DESCRIBES_WITHIN = 120.0
"""Seconds in which a call other than an attack has to end."""

GRACE = 1.0
"""Seconds beyond its time limit after which an attack is killed; its job ends it before."""

REPORTS = 100
"""Reports of progress a second that are read, and those of ten seconds at once."""

LONGEST = 10.0**6
"""Seconds of the longest limit of CPU time."""

MEMORY_MB = 8192
"""Memory of an attack in MiB, if it is not set."""

GPU_READ, GPU_DEVICES = ("/proc", "/sys"), "nvidia*"
"""What a GPU's driver reads, and its files in /dev. Memory of other processes stays closed."""

CLOSED = (
    "It runs in a process of its own, which reads installed packages, Python files beside it and "
    'files that its settings name, and has no network (threat.isolation = "none" opens it)'
)
"""What follows the errors of an adversary that wanted more."""


class IsolatedFailure(Exception):
    """What an isolated adversary raised, as a text that begins with the name of its class."""


class KeptChild:
    """A child that stays for all calls of an adversary in a run, because its start takes long."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._child: process.Child | None = None
        weakref.finalize(self, self._stack.close)

    def open(self, made: Callable[[], AbstractContextManager[process.Child]]) -> process.Child:
        """The child, which is made if there is none."""
        if self._child is None:
            self._child = self._stack.enter_context(made())
        return self._child

    def close(self) -> None:
        """End the child; the next call gets another one."""
        self._child = None
        self._stack.close()


def asked(
    call: Call,
    limit: float,
    *,
    memory: int | None = MEMORY_MB * 2**20,
    progress: Callable[[bytes], None] = lambda report: None,
    kept: KeptChild | None = None,
) -> bytes:
    """The result of a call of an adversary.

    Args:
        call: What is asked.
        limit: Seconds in which an attack has to end.
        memory: Bytes of memory, on a GPU None.
        progress: Called with what the child reports.
        kept: The child that answers; None: a new one.

    Raises:
        IsolatedFailure: The adversary raised, or its process ended or sent something else.
        AttackTimeout: The time is over.
        FedsimError: The adversary raised that.
    """
    content = pickled(call)
    for left in reversed(range(REPEATS + 1)):
        child = KeptChild() if kept is None else kept
        try:
            seconds = limit if kept is None else LONGEST
            opened = child.open(functools.partial(_child, call, seconds, memory))
            opened.ask(content)
            found = _result(opened, limit, progress)
        except process.ServerDied:
            child.close()
            if not left:
                raise IsolatedFailure(
                    f"the process for isolated adversaries died {REPEATS + 1} times"
                ) from None
        except BaseException:
            child.close()
            raise
        else:
            if kept is None:
                child.close()
            return found
    raise AssertionError


@contextlib.contextmanager
def _child(call: Call, limit: float, memory: int | None) -> Iterator[process.Child]:
    """A child behind walls, in which a call can be made."""
    given = call.adversary
    settings = given.model_dump() if isinstance(given, Adversary) else given[1]
    names = named("" if isinstance(given, Adversary) else given[0], settings)
    readable = [*process.readable(), *sources(names), *weights(settings)]
    writable = list[str]()
    if memory is None:
        readable += GPU_READ
        writable += map(str, Path("/dev").glob(GPU_DEVICES))
    with process.server().child(models(), attacks=call.what == "attack") as child:
        seconds = math.ceil(min(limit, LONGEST) + SETTLES_WITHIN)
        surroundings = Surroundings(
            Walls(readable, (child.folder, *writable), memory, seconds),
            child.folder,
            process.search_path(),
            [str(one) for one in search_folders()],
            plugin.registered("adversaries"),
        )
        child.ask(pickle.dumps(surroundings))
        yield child


def _result(child: process.Child, limit: float, progress: Callable[[bytes], None]) -> bytes:
    """Read a child's frames until its result; raise the error that it sends, or how it ended."""
    started = time.monotonic()
    until = started + SETTLES_WITHIN + limit
    began, reports = False, 0
    while True:
        try:
            kind, content = child.answer(until - time.monotonic())
        except EOFError as ended:
            raise IsolatedFailure(f"its process ended without a claim ({ended})") from None
        except frames.TooLong as error:
            raise IsolatedFailure(f"it sent {error}") from None
        except frames.Silent:
            what = "without reporting progress" if began else "or its import"
            raise AttackTimeout(f"over its limit of {limit:g} s, {what}") from None
        if kind == frames.BEGAN and not began:
            began, until = True, time.monotonic() + limit + GRACE
        elif kind == frames.PROGRESS:
            reports += 1
            if reports <= REPORTS * (10 + time.monotonic() - started):
                progress(content)
        elif kind == frames.RESULT:
            return content
        elif kind == frames.ERROR:
            raise _error(content)


def _error(content: bytes) -> Exception:
    """The exception that a child sends as the names of its classes and a text."""
    try:
        table = json.loads(content)
        kinds, text = [str(one)[:200] for one in table["kinds"]], str(table["text"])[:2000]
        name = kinds[0]
    except (ValueError, TypeError, LookupError, RecursionError):
        return IsolatedFailure("its error cannot be read")
    if "PermissionError" in text or "Errno 1]" in text:
        text += f". {CLOSED}"
    if "OutOfMemoryError" in kinds:
        return torch.OutOfMemoryError(text)
    for kind in kinds:
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, FedsimError):
            return known(text)
    memory = "MemoryError" in kinds or NO_MEMORY in text
    advice = ". Raise threat.memory_mb, the memory that it may use" if memory else ""
    return IsolatedFailure(f"{name}: {text}{advice}")
