"""Tables of a run folder: rows as lines of CSV, written durably, read without a torn last line."""

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import RunFolderError

__all__ = ["cells", "encoded", "line", "read_table", "writing"]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk is the user's to mend: one message, not a traceback."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


def cells(values: Sequence[Any]) -> list[str]:
    """One line a row, so that a torn last line is told by its missing end."""
    return ["" if v is None else str(v).replace("\r", " ").replace("\n", " ") for v in values]


def line(cells: Sequence[str]) -> str:
    """One row as a line of CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def encoded(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> bytes:
    """A table, its header first, as a file holds it."""
    return (line(columns) + "".join(map(line, rows))).encode()


def read_table(path: Path, columns: Sequence[str]) -> tuple[list[list[str]], bool]:
    """The whole rows of a table, and whether its last line was torn by a kill."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error
    torn = bool(text) and not text.endswith("\n")
    if torn:
        text = text[: text.rfind("\n") + 1]
    rows = list(csv.reader(io.StringIO(text)))
    if not rows or rows[0] != list(columns):
        raise RunFolderError(
            f"{path} has other columns than this version writes: {', '.join(columns)}"
        )
    return rows[1:], torn
