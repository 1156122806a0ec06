"""Tables of a run folder, as lines of CSV read without an incomplete last line, and its paths."""

import contextlib
import csv
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedsim.errors import RunFolderError, encodable, not_written
from fedsim.inert import inert, restored
from fedsim.runs.files import write_whole
from fedsim.runs.reading import COLUMNS, refuse_pipes

PUT_BACK = "Put back the file that the run wrote, or begin a run with another --out"

csv.field_size_limit(2**31 - 1)  # a sum of many clients names each of them

TABLES = {
    "findings.csv": COLUMNS,
    "utility.csv": ["round", "metric", "value", "point"],
    "points.csv": ["point", "seconds"],
}
"""The columns of each table that a run appends to."""

POINT, VICTIM, LABEL = (COLUMNS.index(name) for name in ("point", "victim", "label"))


def order_of(row: Mapping[str, str]) -> tuple[object, ...]:
    """The place of a row in a finished findings.csv."""
    clients = [int(client) for client in row["client"].split("+")]
    return row["point"], int(row["round"]), clients, row["victim"], row["label"], row["metric"]


def place(folder: str, point: str) -> str:
    """The path of a sweep point's files: `folder`, or a folder of its own within."""
    if not point:
        return folder
    return f"{folder}/{hashlib.sha256(point.encode()).hexdigest()[:12]}"


LONGEST = 100
"""Characters of a point's name in the name of its folder."""


def artifacts_place(point: str) -> str:
    """The path of a sweep point's artifacts, `artifacts/POINT`, or `artifacts` without a sweep."""
    return f"artifacts/{folder_name(point)}" if point else "artifacts"


def folder_name(point: str) -> str:
    """The name of a sweep point as that of a folder.

    Characters that a path, a link or another system could misread become `_`, and long names are
    cut off; a hash of the name then keeps points apart.
    """
    name = re.sub(r"[^A-Za-z0-9._=,+-]", "_", point)[:LONGEST]
    if name.startswith("."):
        name = f"_{name[1:]}"
    if name != point:
        name += f"-{hashlib.sha256(point.encode()).hexdigest()[:8]}"
    return name


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an `OSError` into a `RunFolderError` with one message, `DiskFull` without room."""
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from error


def holds_run(folder: Path, *, resume: bool = False) -> bool:
    """Whether there is a run in a folder that is to become a run folder.

    Args:
        folder: The folder, which need not exist.
        resume: Whether a run there is to be continued.

    Raises:
        RunFolderError: It holds something else than it should.
        OSError: It cannot be read.
    """
    if "\0" in str(folder):
        raise RunFolderError(f"{str(folder)!r} holds a null character; choose another --out")
    exists = (folder / "scenario.toml").exists()
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file; choose another --out")
    if exists and not resume:
        raise RunFolderError(
            f"{folder} holds a run already. Choose another --out (out= in a script), or "
            "delete it; fedsim run continues it with --resume"
        )
    # A kill right at the start leaves a lock, or a part of the first file.
    others = folder.iterdir() if folder.exists() else ()
    if not exists and any(p.suffix != ".part" and not p.name.startswith(".lock") for p in others):
        raise RunFolderError(f"{folder} is not empty and holds no run; choose another --out")
    if exists:
        refuse_pipes(folder)
    if resume and not exists:
        raise RunFolderError(f"{folder} holds no run to resume; leave out --resume")
    return exists


def cells(values: Sequence[Any]) -> list[str]:
    """Values as text that UTF-8 can encode, without line breaks, so that a row is one line."""
    texts = ("" if v is None else encodable(str(v)) for v in values)
    return [text.replace("\r", " ").replace("\n", " ") for text in texts]


def lines(rows: Iterable[Sequence[str]]) -> str:
    """Format rows as lines of CSV, in which no text is a formula; see `inert`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(map(inert, row) for row in rows)
    return out.getvalue()


def cut_to_lines(file: IO[bytes]) -> None:
    """Remove what a killed process wrote of a line, at the end of a file that is open to append."""
    if not (size := file.seek(0, 2)):
        return
    file.seek(size - 1)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)


def parsed(text: str) -> list[list[str]]:
    """The rows of lines of CSV, with each text as `lines` was given it."""
    return [[*map(restored, row)] for row in csv.reader(io.StringIO(text))]


def read_table(path: Path, columns: Sequence[str]) -> tuple[list[list[str]], bool]:
    """Read the complete rows of a table.

    Returns:
        The rows, and whether a line was incomplete, as after a kill or on a full disk.

    Raises:
        RunFolderError: The file cannot be read, or has other columns.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"{path} cannot be read: {reason}. {PUT_BACK}") from error
    torn = bool(text) and not text.endswith("\n")
    if torn:
        text = text[: text.rfind("\n") + 1]
    rows = parsed(text)
    if not rows and (torn or not text):
        return [], True
    if not rows or rows[0] != list(columns):
        raise RunFolderError(
            f"{path} has other columns than this version writes ({', '.join(columns)}). {PUT_BACK}"
        )
    whole = [row for row in rows[1:] if len(row) == len(columns)]
    at = columns.index("round") if "round" in columns else None
    if at is not None and (odd := [row for row in whole if not row[at].isdecimal()]):
        raise RunFolderError(
            f"{path} was changed and cannot be read: {odd[0][at]!r} is no round. {PUT_BACK}"
        )
    return whole, torn or len(whole) < len(rows) - 1


def widen(path: Path, columns: Sequence[str]) -> None:
    """Add the columns, empty, that an earlier version of fedsim did not write to a table.

    Raises:
        RunFolderError: The table cannot be read or written.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            found = next(csv.reader(file), [])
    except (OSError, ValueError):  # not there yet, or an error when it is read or written
        return
    if not found or len(found) == len(columns) or found != list(columns[: len(found)]):
        return
    rows, _ = read_table(path, found)
    more = [""] * (len(columns) - len(found))
    with writing(path):
        write_whole(path, lines([columns, *([*row, *more] for row in rows)]).encode())


def not_writable(folder: Path, error: OSError) -> RunFolderError:
    """Why a run folder cannot be written, with the user's number if a permission is missing.

    A folder that is mounted into a container often belongs to another user.
    """
    fix = "Choose another --out"
    if isinstance(error, PermissionError) and hasattr(os, "getuid"):
        fix += f", or a folder that user {os.getuid()} may write to"
    with contextlib.suppress(OSError):  # such as a name that is too long
        if (folder / "scenario.toml").exists():
            fix = "Copy the run to a folder that you may write to"
    return RunFolderError(
        f"{str(folder)[:200]} cannot be written: {error.strerror or error}. {fix}"
    )
