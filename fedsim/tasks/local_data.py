"""Local data sets: files found by name in the folder that `--data` or `FEDSIM_DATA` names."""

import contextlib
import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import DataError, did_you_mean

__all__ = ["data_folder", "find_file", "read_rows", "read_text"]


def data_folder(folder: Path | None, *, what: str, use: str) -> Path:
    """Check the folder in which a data set is looked up by name.

    Args:
        folder: The folder; None if neither `--data` nor `FEDSIM_DATA` names one.
        what: What is looked up, for the message: "data 'mnist'".
        use: A setting that needs no folder, for the message: 'data = "digits"'.

    Returns:
        The folder, which exists and is not empty.

    Raises:
        DataError: no folder is given, it does not exist, it cannot be read, or it is empty.
    """
    ways = f"Use {use} (built in), or name a folder with --data DIR or FEDSIM_DATA"
    if folder is None:
        raise DataError(f"{what} is looked up in a folder, and none is given. {ways}")
    if not folder.is_dir():
        raise DataError(f"{what} is looked up in {folder}, which is not there. {ways}")
    try:
        empty = not any(folder.iterdir())
    except OSError as error:
        raise DataError(
            f"{what} is looked up in {folder}, which cannot be read: {error.strerror}. {ways}"
        ) from error
    if empty:
        raise DataError(
            f"{what} is looked up in {folder}, which is empty. {ways}; in a container, mount one "
            f"(--volume DIR:{folder}:ro)"
        )
    return folder


def find_file(
    name: str, folder: Path | None, *, inside: str, endings: Sequence[str], built_in: str
) -> Path:
    """Find the file of a data set by its stem.

    Args:
        name: The stem of the file.
        folder: The data folder.
        inside: A folder in the data folder that is searched first.
        endings: The suffixes that the file may have, the preferred one first.
        built_in: A data set that needs no file, for the error message.

    Raises:
        DataError: There is no such file.
    """
    folder = data_folder(folder, what=f"data '{name}'", use=f'data = "{built_in}"')
    files = {
        path.stem: path
        for place in (folder, folder / inside)
        for ending in reversed(endings)
        for path in place.glob(f"*{ending}")
    }
    if name not in files:
        raise DataError(
            f"no data '{name}' in {folder} (as {name}{' or '.join(endings)}, there or in "
            f"its folder {inside}). {did_you_mean(name, [*files, built_in])}"
        )
    return files[name]


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        DataError: The file cannot be read, or is not UTF-8.
    """
    with _reading(path):
        return path.read_text(encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a csv, tsv or jsonl file, each by the names of its columns.

    Raises:
        DataError: The file cannot be read, or a line of jsonl is not an object.
    """
    with _reading(path), path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in file if line.strip()]
            if not all(isinstance(row, dict) for row in rows):
                raise DataError(f"{path} has a line that is no object; expected one a line")
            return rows
        if path.suffix == ".tsv":
            return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        return list(csv.DictReader(file))


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say in the error which file could not be read."""
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
