"""Files of a run folder that grow during the run, or are replaced whole."""

import os
from collections.abc import Sequence
from pathlib import Path

from fedsim.runs.files import opened, write_whole
from fedsim.runs.tables import TABLES, lines, parsed, read_table, writing


class GrowingFiles:
    """The files of a run folder, which one process at a time writes.

    Args:
        folder: The run folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[list[list[str]], int]] = {}

    def rows(self, name: str) -> list[list[str]]:
        """The complete rows of a table of `TABLES`, each read once.

        Reading the whole table at each of a thousand points would take most of the run's time.
        """
        rows, end = self._known.get(name, ([], 0))
        path = self._folder / name
        if not end:
            rows = read_table(path, TABLES[name])[0]
            end = path.stat().st_size
        elif path.stat().st_size > end:
            with path.open("rb") as file:
                file.seek(end)
                rows += parsed(file.read().decode(errors="replace"))
                end = file.tell()
        self._known[name] = (rows, end)
        return rows

    def forget(self) -> None:
        """Read all tables anew, since something else wrote to them."""
        self._known.clear()

    def write(self, name: str, rows: Sequence[Sequence[str]] = ()) -> None:
        """Write a table of `TABLES` with these rows alone."""
        self.replace(name, lines([TABLES[name], *rows]).encode())

    def append(self, name: str, text: str = "", *, sync: bool = True) -> None:
        """Append text to a file.

        Args:
            name: The file's name.
            text: Whole lines.
            sync: Whether to wait until all that was appended to this file is on disk.
        """
        path = self._folder / name
        with writing(path), opened(path, "a", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def replace(self, name: str, content: bytes) -> None:
        """Write a file anew, or leave what was there."""
        self._known.pop(name, None)
        with writing(self._folder / name):
            write_whole(self._folder / name, content, sync=True)
