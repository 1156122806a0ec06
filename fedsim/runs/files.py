"""Files and folders in a run folder, made with the permissions of the folder that they lie in.

A run folder holds people's data, and is made for its owner alone (0700) unless `record.shared`.
What is written to it later, also by `fedsim attack` or `fedsim report`, needs no setting: it is
as readable as its folder.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import IO, Any

OWNER = 0o700
"""Permissions of a folder that its owner alone can read."""


def make_private(folder: Path, *, shared: bool) -> None:
    """Make a folder, or take one that is empty, for its owner alone.

    Args:
        folder: The folder. Missing folders above it are made with the usual permissions.
        shared: Whether it gets the usual permissions as well.

    Raises:
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o777 if shared else OWNER, parents=True, exist_ok=True)
    if not shared:
        with contextlib.suppress(OSError):  # of another owner, or a system without permissions
            folder.chmod(OWNER)


def make_folder(path: Path) -> None:
    """Make a folder, and missing ones above it, with the permissions of the first that exists.

    Raises:
        OSError: It cannot be made.
    """
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=stat.S_IMODE(path.parent.stat().st_mode) & 0o777, exist_ok=True)


def opened(path: Path, mode: str, **how: Any) -> IO[Any]:
    """Open a file; one that is made is as readable as its folder.

    Args:
        path: The file.
        mode: As for `open`, such as "ab".
        **how: Further arguments of `open`.

    Raises:
        OSError: It cannot be opened.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, permissions(path.parent))

    return open(path, mode, opener=opener, **how)  # Path.open takes no opener


def match_folder(path: Path) -> None:
    """Give a file that a library made the permissions of its folder.

    Raises:
        OSError: It is another owner's.
    """
    path.chmod(permissions(path.parent))


def write_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Write a file under a partial name and rename it, so that no reader meets half of it.

    Args:
        path: The file. Missing folders are made.
        content: Its content.
        sync: Whether to wait until it is on disk.

    Raises:
        OSError: It cannot be written.
    """
    make_folder(path.parent)
    partial = path.with_name(path.name + ".part")
    with opened(partial, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    partial.replace(path)


def permissions(folder: Path) -> int:
    """The permissions of files in a folder: those of the folder, without the right to execute."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o666
