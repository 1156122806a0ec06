"""The truth store: files on a client's machine with what it trained on.

A client's own process writes what `fedsim.watch` saw to a file of the truth store, and sends the
random name of that file along with its update. A server of the same user on the same machine moves
the file into its run folder, to score attacks. The examples never travel over the network.
"""

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from fedsim.errors import RunFolderError
from fedsim.runs.tables import writing
from fedsim.runs.truth import Seen, TruthFile

VARIABLE = "FEDSIM_TRUTH"
"""The environment variable that names another folder for the truth store."""

KEPT_SECONDS = 86_400
"""Age from which files that no server has taken are removed."""

NAME = re.compile(r"[0-9a-f]{32}")
"""Names of files in the truth store, which are drawn at random."""

OURS = re.compile(NAME.pattern + r"\.safetensors(\.part)?")
"""Files that the truth store may remove; the folder may hold others, which are not fedsim's."""


def store() -> Path:
    """The folder of the truth store, readable by its user alone; made if it is not there.

    Files that no server has taken for a day are removed.

    Raises:
        RunFolderError: It cannot be made, belongs to another user, or others can write to it.
    """
    user = os.getuid() if hasattr(os, "getuid") else 0
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir(), f"fedsim-truth-{user}")
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != user or (folder.is_symlink() and not named):
            raise RunFolderError(
                f"{folder} belongs to another user; set {VARIABLE} to a folder of your own"
            )
        if os.name == "posix" and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise RunFolderError(
                f"others can write to {folder}, which holds clients' examples: chmod 700 it, or "
                f"set {VARIABLE} to another folder"
            )
        _sweep(folder)
    return folder


def _sweep(folder: Path) -> None:
    """Remove old files of servers that ended, or that are on another machine."""
    for path in folder.iterdir():
        if not OURS.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):  # another process removes them, too
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and time.time() - found.st_mtime > KEPT_SECONDS:
                path.unlink()


def write(name: str, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
    """Write a file of the truth store.

    Raises:
        RunFolderError: It cannot be written, such as on a full disk.
    """
    _write(store() / f"{name}.safetensors", seen, tensors)


def find(name: object) -> TruthFile | None:
    """A file of the truth store, left where it is.

    Args:
        name: Its name, as a client sent it.

    Returns:
        The file; None if the name is none or there is no such file on this machine.

    Raises:
        RunFolderError: It cannot be read.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return None
    path = store() / f"{name}.safetensors"
    return TruthFile(path) if path.is_file() else None


def move(file: TruthFile, to: Path, seen: Seen, *, inputs: bool = True) -> TruthFile:
    """Move a file of the truth store into a run folder, where its user alone can read it.

    Args:
        file: The file.
        to: Where it goes.
        seen: What is written there of the training.
        inputs: Whether inputs are kept; if not, it is partial.

    Raises:
        RunFolderError: It cannot be read or written.
    """
    kept = file.tensors()
    if not inputs:
        kept = {key: value for key, value in kept.items() if not key.startswith("inputs.")}
        seen = seen.model_copy(update={"partial": True})
    with writing(to):
        to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        to.parent.chmod(0o700)
        _write(to, seen, kept)
        file.path.unlink(missing_ok=True)
    return TruthFile(to)


def discard(name: object) -> None:
    """Remove a file of the truth store, such as that of a client whose update was refused."""
    if isinstance(name, str) and NAME.fullmatch(name):
        (store() / f"{name}.safetensors").unlink(missing_ok=True)


def _write(path: Path, seen: Seen, tensors: Mapping[str, Tensor]) -> None:
    """Write under a partial name that its user alone can read, and rename it."""
    partial = path.with_name(f"{path.name}.part")
    plain = {key: value.contiguous() for key, value in tensors.items()}
    with writing(path):
        partial.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(partial, flags, mode=0o600), "wb") as file:
            file.write(save(plain, {"fedsim": seen.model_dump_json()}))
        partial.replace(path)
