"""Data sets by name: files in the folder that `--data` or `FEDSIM_DATA` names, or by a path.

Also what a function of the user's own returns, and those of the Hugging Face Hub, the only data
that is loaded over the network.
"""

import contextlib
import csv
import functools
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB, brief
from fedsim.references import resolve, search_folders


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
    if (path := find_path(name, folder)) is not None:
        if path.suffix in endings:
            return path
        raise DataError(f"data '{name}' is {path}; expected a file that ends in {_either(endings)}")
    if "/" in name:
        raise not_there(name, folder)
    folder = data_folder(folder, what=f"data '{name}'", use=f'data = "{built_in}"')
    files = {
        path.stem: path
        for place in (folder, folder / inside)
        for ending in reversed(endings)
        for path in place.glob(f"*{ending}")
        if path.exists()
    }
    if name not in files:
        raise DataError(
            f"no data '{name}' in {folder} (as {name}{_either(endings)}, there or in "
            f"its folder {inside}). {did_you_mean(name, [*files, built_in])} What lies elsewhere "
            f"is named by a path with a slash, such as ./{name}{endings[0]}"
        )
    return files[name]


def _either(endings: Sequence[str]) -> str:
    return " or ".join(endings)


def find_path(name: str, folder: Path | None, *, inside: str = "") -> Path | None:
    """Find a file by a path, or a folder by a path or its name.

    Args:
        name: The path, with a slash in it: absolute, or relative to the data folder, the scenario
            or the current folder. The name of a folder is looked up in the data folder alone.
        folder: The data folder.
        inside: A folder in the data folder that is searched first for a folder's name.

    Returns:
        What was found; None if there is nothing, or if a name without a slash is no folder's.
    """
    if "/" not in name:
        found = (place / name for place in ([] if folder is None else [folder / inside, folder]))
        return next((path for path in found if path.is_dir()), None) if inside else None
    found = (place / Path(name).expanduser() for place in _roots(folder, inside))
    return next((path for path in found if path.exists()), None)


def _roots(folder: Path | None, inside: str = "") -> list[Path]:
    """The folders to which a path may be relative."""
    given = [] if folder is None else [folder / inside, folder]
    return list(dict.fromkeys([*given, *search_folders(), Path.cwd()]))


def not_there(name: str, folder: Path | None) -> DataError:
    """The error of a path, a name with a slash, that leads nowhere."""
    if Path(name).expanduser().is_absolute():
        return DataError(f"data '{name}' is not there")
    roots = ", ".join(map(str, _roots(folder)))
    return DataError(f"no data '{name}': a path is relative to one of {roots}, with its ending")


def inside_folder(folder: Path, name: str | Path) -> Path:
    """The file of a data set that an index or a folder names.

    Args:
        folder: The data set's folder.
        name: The file's path, relative to the folder.

    Raises:
        DataError: The path is absolute, or leads out of the folder ("..", or a link) or nowhere.
    """
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle; a null character
        raise DataError(f"'{name}' in {folder} is no path of a file: {brief(error)}") from error
    if Path(name).is_absolute() or not inside:
        raise DataError(
            f"'{name}' lies outside {folder}: files of a data set are read from its own folder "
            "only. Put the file there, and name it by its path from there"
        )
    return path


def files_by_label(folder: Path, endings: Sequence[str]) -> dict[str, list[Path]]:
    """The files in the subfolders of a folder, by the name of the subfolder, both sorted.

    Hidden ones are left out, such as .ipynb_checkpoints and the ._NAME that macOS adds.

    Args:
        folder: The folder.
        endings: The suffixes of files that count, in lower case.

    Raises:
        DataError: A file is a link that leads out of the folder.
    """
    found = {
        label.name: sorted(
            inside_folder(folder, path.relative_to(folder))
            for path in label.rglob("*")
            if path.suffix.lower() in endings
            and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        )
        for label in sorted(path for path in folder.iterdir() if path.is_dir())
    }
    return {label: files for label, files in found.items() if files}


def names_in(
    folder: Path, *, inside: str, endings: Sequence[str], labelled: Sequence[str] = ()
) -> list[str]:
    """The names of data sets in the data folder, sorted.

    Args:
        folder: The data folder.
        inside: A folder in it that is searched as well.
        endings: The suffixes of files that are data sets.
        labelled: The suffixes of files that make a folder with subfolders a data set.
    """
    listed = [
        path for place in (folder, folder / inside) if place.is_dir() for path in place.iterdir()
    ]
    return sorted(
        {path.stem for path in listed if path.suffix in endings and path.is_file()}
        | {
            path.name
            for path in listed
            if path.is_dir() and any(file.suffix.lower() in labelled for file in path.glob("*/*"))
        }
        - {inside}
    )


_called: Callable[[Callable[[], Any]], Any] = functools.lru_cache(4)(lambda function: function())


def call_loader(reference: str, expected: str) -> Any:
    """Call a function of the user's own that loads data, once in a process.

    Args:
        reference: "module:function".
        expected: What it has to return, for the error message.

    Raises:
        PluginError: There is no such function.
        DataError: It raises, or returns nothing.
    """
    function = resolve(reference)
    if not callable(function):
        raise DataError(f"task.data: '{reference}' is {function!r:.80}; expected a function")
    try:
        found = _called(function)
    except Exception as error:
        raise DataError(
            f"task.data: {reference}() raised {brief(error)}; expected it to return {expected}"
        ) from error
    if found is None:
        raise DataError(f"task.data: {reference}() returned nothing; expected {expected}")
    return found


def hub_splits(name: str, otherwise: str) -> Any:
    """Load a data set of the Hub.

    Args:
        name: "hub:OWNER/SET[/CONFIG]".
        otherwise: How else to provide its data, for the error message.

    Returns:
        The splits by name, of the `datasets` library.

    Raises:
        DataError: The data set could not be loaded, for whatever reason.
    """
    import datasets
    from huggingface_hub.utils import logging

    # Without a network it would report every retry; the error below reports it once.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    owner, _, rest = name.removeprefix(HUB).partition("/")
    repository, _, config = rest.partition("/")
    try:
        return datasets.load_dataset(f"{owner}/{repository}" if rest else owner, config or None)
    # Any failure, from name resolution to decoding, has the same two remedies.
    except Exception as error:
        reason = (str(error).strip() or "no message").splitlines()[0]
        raise DataError(
            f"data '{name}' could not be loaded from the Hub ({type(error).__name__}: {reason}). "
            "Either load it once where there is a network (it is cached from then on), or save "
            f"it {otherwise}."
        ) from error


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        DataError: The file cannot be read, or is not UTF-8.
    """
    with reading(path):
        return path.read_text(encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of a csv, tsv, jsonl or parquet file, each by the names of its columns.

    Raises:
        DataError: The file cannot be read, or a line of jsonl is not an object.
    """
    if path.suffix == ".parquet":
        return as_rows(read_parquet(path))
    # Spreadsheets and Windows begin a file with a mark of its encoding; utf-8-sig leaves it out.
    with reading(path), path.open(encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".jsonl":
            rows = [_object(line, at) for at, line in enumerate(file, 1) if line.strip()]
            if not all(isinstance(row, dict) for row in rows):
                raise DataError(f"{path} has a line that is no object; expected one a line")
            return rows
        if path.suffix == ".tsv":
            rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
        else:
            rows = list(csv.DictReader(file))
        if longer := next((at for at, row in enumerate(rows, 1) if None in row), 0):
            raise DataError(
                f"{path}: row {longer} has more cells than there are columns, "
                f"{', '.join(filter(None, rows[0]))}. Put a cell with a separator in it in quotes, "
                "or save the table as jsonl"
            )
        return rows


def _object(line: str, at: int) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:  # counts lines from the one that it is given
        raise ValueError(f"line {at}, column {error.colno}: {error.msg}") from error


def read_parquet(path: Path) -> Any:
    """Read a Parquet file as a DataFrame.

    Raises:
        DataError: The file cannot be read.
    """
    import pandas as pd

    with reading(path):
        try:
            return pd.read_parquet(path)
        # Of a damaged file, pandas and Arrow raise whatever they meet in its description.
        except (AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise ValueError(brief(error)) from error


def as_rows(table: Any) -> list[dict[str, Any]]:
    """Anything that pandas takes as a table, as rows by the names of its columns.

    Args:
        table: A DataFrame, a list of dictionaries, or columns by name.

    Raises:
        ValueError: Columns differ in length.
    """
    import pandas as pd

    return [{str(key): value for key, value in row.items()}
            for row in pd.DataFrame(table).to_dict("records")]  # fmt: skip


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Say in the error which file could not be read; a pipe or device would never end."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} cannot be read: it is no regular file")
    try:
        yield
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read: {error}; save it as UTF-8") from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    except (MemoryError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: it is too large or too deep ({error})") from error
