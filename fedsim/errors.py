"""Every exception that fedsim raises on purpose.

    FedsimError
    ├── ScenarioError        a scenario that cannot be run as written
    ├── PluginError          a plugin that is unknown, or breaks its contract
    ├── DataError            data that is missing, unreadable or of the wrong shape
    ├── RunFolderError       a run folder that exists already, or cannot be written or read
    │   └── DiskFull         a file of it that a disk, a quota or a limit has no room for
    ├── EngineError          an engine that cannot start, or lost its workers
    ├── ClientError          a client that raised, or whose update was refused
    │   └── UpdateRefused    NaN, Inf, huge, missing, extra or wrongly shaped tensors
    ├── NotMeasured          a reproduction without one measured row
    ├── NotGranted           knowledge that the threat model withholds from an adversary
    └── Cancelled            an attack that was asked to stop
        └── AttackTimeout    an attack over its wall-clock limit

A message says what was found, what was expected, and what to do about it.
"""

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path


class FedsimError(Exception):
    """Base class: catch this to catch everything fedsim raises on purpose."""


class ScenarioError(FedsimError):
    """A scenario that cannot be run as written."""


class PluginError(FedsimError):
    """A plugin that is unknown, cannot be loaded, or breaks its contract."""


class DataError(FedsimError):
    """Data that is missing, unreadable or of the wrong shape."""


class RunFolderError(FedsimError):
    """A run folder that exists already, or cannot be written or read."""


class DiskFull(RunFolderError):
    """A file of a run folder that a disk, a quota or a limit has no room for."""


class EngineError(FedsimError):
    """An engine that cannot start, or lost its workers."""


class ClientError(FedsimError):
    """A client that raised, or whose update was refused."""


class UpdateRefused(ClientError):
    """An update with NaN, Inf, huge, missing, extra or wrongly shaped tensors."""


class NotMeasured(FedsimError):
    """A reproduction without one measured row."""


class NotGranted(FedsimError):
    """Knowledge that the threat model withholds from an adversary."""


class Cancelled(FedsimError):
    """An attack that was asked to stop; raised by `Job.progress`."""


class AttackTimeout(Cancelled):
    """An attack over its wall-clock limit."""


def not_written(path: Path, error: OSError) -> RunFolderError:
    """The error of a file that cannot be written: `DiskFull` without room."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    kind = DiskFull if full else RunFolderError
    return kind(f"{path} cannot be written: {error.strerror or error}")


def encodable(text: str) -> str:
    """Text that can be stored and printed: lone surrogates are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def did_you_mean(word: str, known: Iterable[str], listed: Iterable[str] | None = None) -> str:
    """A sentence that names the known word nearest to an unknown one, and all known words.

    Args:
        word: The unknown word.
        known: The known words.
        listed: The words to list instead of all known ones, if these are too many.
    """
    names = sorted(set(known))
    if not names:
        return "There are none."
    near = difflib.get_close_matches(word, names, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return f"{hint}Known: {', '.join(names if listed is None else sorted(set(listed)))}."
