"""Loading tables: scikit-learn's, CSV or Parquet files, and those that a function returns."""

import csv
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import read_csv
from fedsim.references import is_reference
from fedsim.seeds import numpy_generator
from fedsim.spec import Column
from fedsim.tasks.classification import Examples
from fedsim.tasks.local_data import call_loader, find_file, read_parquet, reading
from fedsim.tasks.partitioned import sha256

if TYPE_CHECKING:
    import pandas as pd

EMBEDDED = ("breast-cancer", "wine")
ENDINGS = (".parquet", ".csv")
MOST_CATEGORIES = 256
"""Largest number of categories: a column with more is a name or an identifier of the row."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Table(Examples):
    """A labelled table with all splits.

    Attributes:
        columns: Columns that are not the label.
        rows: Encoded rows, float32 of shape (N, F).
        names: Names of the classes.
        cautions: What may be read otherwise than it is meant.
    """

    columns: tuple[Column, ...]
    rows: Tensor
    names: tuple[str, ...]
    cautions: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an encoded row, (F,)."""
        return tuple(self.rows.shape[1:])

    def inputs(self, index: Tensor) -> Tensor:
        """Return encoded rows (n, F) by their indices (n,)."""
        return self.rows[index]

    def fingerprint(self) -> str:
        """Return the SHA-256 of columns, rows and labels."""
        return sha256((self.columns, self.names), self.rows, self.labels)


def load(
    name: str,
    folder: Path | None,
    *,
    test: str | None,
    label: str | None,
    categorical: Sequence[str],
    test_fraction: float,
    seed: int,
) -> Table:
    """Load a table and encode its rows.

    Args:
        name: "breast-cancer", "wine", the stem or path of a CSV or Parquet file, or
            "module:function".
        folder: Folder in which files are looked up, itself or its subfolder `tables`.
        test: Name of another table, whose rows are the test split.
        label: Column with the label; None for the one called "label", or the last one without it.
        categorical: Columns of numbers that are treated as categories.
        test_fraction: Share of the rows that is the test split if `test` is None.
        seed: Seed of that split.

    Raises:
        DataError: There is no such table, or it cannot be used.
    """
    import pandas as pd

    frame = _frame(name, folder)
    if not len(frame.columns) or frame.columns.has_duplicates:
        shown = ", ".join(frame.columns) or "none"
        raise DataError(f"data '{name}' has the columns: {shown}; expected some, all different")
    label = label or ("label" if "label" in frame else str(frame.columns[-1]))
    for column in (label, *categorical):
        if column not in frame:
            raise DataError(
                f"data '{name}' has no column '{column}'. {did_you_mean(column, frame.columns)}"
            )
    if test is None:
        order = numpy_generator(seed, "test split").permutation(len(frame))
        tests = np.zeros(len(frame), dtype=bool)
        tests[order[: max(1, min(len(frame) - 1, round(test_fraction * len(frame))))]] = True
        known = frame
    else:
        known, other = frame, _frame(test, folder)
        if lacking := [column for column in map(str, frame) if column not in other]:
            raise DataError(f"data '{test}' lacks the columns {', '.join(lacking)} of '{name}'")
        frame = pd.concat([known, other[known.columns]], ignore_index=True)
        tests = np.arange(len(frame)) >= len(known)
    _check(name, frame, label)
    classes, labels = _codes(f"the label column '{label}'", name, known[label], frame[label])
    described, parts = list[Column](), list[np.ndarray[Any, Any]]()
    cautions = list[str]()
    if 2 * len(classes) > len(frame):
        cautions.append(
            f"data '{name}': the label column '{label}' has {len(classes)} classes in {len(frame)} "
            "rows. If it holds no classes, name another one in task.label"
        )
    for column in frame.columns.drop(label):
        values, where = frame[column], f"column '{column}'"
        if column in categorical or not _is_number(values):
            found, codes = _codes(where, name, known[column], values)
            if column not in categorical:
                cautions += _nearly_numbers(name, where, values) or _nearly_unique(
                    name, where, values, found
                )
            if len(found) > MOST_CATEGORIES:
                raise DataError(
                    f"data '{name}': {where} has {len(found)} categories; expected "
                    f"{MOST_CATEGORIES} or fewer. Leave the column out"
                )
            described.append(Column(column, categories=found))
            parts.append(np.eye(len(found))[codes])
        else:
            if values[~tests].nunique() < 2:
                raise _constant(where, name, values[~tests].iloc[0])
            mean, scale, numbers = _standardised(where, name, values, values[~tests])
            described.append(Column(column, mean=mean, scale=scale))
            parts.append(numbers)
    if not described:
        raise DataError(f"data '{name}' has no column but the label '{label}'")
    return Table(
        columns=tuple(described),
        rows=torch.from_numpy(np.concatenate(parts, axis=1).astype(np.float32)),
        labels=torch.from_numpy(labels),
        names=classes,
        cautions=tuple(cautions),
        classes=len(classes),
        train=torch.from_numpy(np.flatnonzero(~tests)),
        test=torch.from_numpy(np.flatnonzero(tests)),
    )


def _nearly_numbers(name: str, where: str, values: "pd.Series[Any]") -> list[str]:
    """A caution about text of which most is numbers, such as those with "?" for a missing one."""
    import pandas as pd

    if values.dtype.kind == "b":
        return []
    others = values[pd.to_numeric(values.astype(str), errors="coerce").isna()]
    if not len(others) or 2 * len(others) >= len(values):
        return []
    return [
        f"data '{name}': {where} is taken for categories, since {len(others)} of its "
        f"{len(values)} values are no numbers, the first {str(others.iloc[0])!r:.40}. Fill them in "
        "or drop these rows if it holds numbers"
    ]


def _nearly_unique(
    name: str, where: str, values: "pd.Series[Any]", categories: tuple[str, ...]
) -> list[str]:
    """A caution about text that differs in most rows, such as dates, names or "1,000" or "5 %"."""
    if 2 * len(categories) <= len(values):
        return []
    return [
        f"data '{name}': {where} is taken for {len(categories)} categories in {len(values)} rows, "
        f"the first {str(values.iloc[0])!r:.40}. Write numbers as such, or leave the column out if "
        "it holds no categories"
    ]


def _frame(name: str, folder: Path | None) -> "pd.DataFrame":
    import pandas as pd

    if name in EMBEDDED:
        from sklearn import datasets

        found = getattr(datasets, f"load_{name.replace('-', '_')}")(as_frame=True)
        labels = found.target_names[found.target.to_numpy()]
        return pd.DataFrame(found.data).assign(label=labels)
    if is_reference(name):
        return _own(name)
    path = find_file(name, folder, inside="tables", endings=ENDINGS, built_in=EMBEDDED[0])
    return _file(path, path.stat().st_mtime_ns)


def _own(name: str) -> "pd.DataFrame":
    """Call a user's function and convert its result to a table, as far as pandas can."""
    import pandas as pd

    expected = "a DataFrame, a list of dictionaries, or columns by name, of the same length"
    try:
        return pd.DataFrame(call_loader(name, expected)).rename(columns=str)
    except (ValueError, TypeError) as error:
        raise DataError(f"{name}() returned no table: {error}; expected {expected}") from error


@functools.lru_cache(maxsize=2)
def _file(path: Path, written: int) -> "pd.DataFrame":
    """Read a file once in a process, and again if `written`, its time of change, differs."""
    import pandas as pd

    with reading(path):
        frame = _csv(path) if path.suffix == ".csv" else read_parquet(path)
    return pd.DataFrame(frame).rename(columns=str)


def _csv(path: Path) -> "pd.DataFrame":
    """Read a CSV file, without row numbers in a first column that has no name.

    Raises:
        ValueError: Its columns are separated by another sign, or have no names in the first line.
    """
    import pandas as pd

    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
    columns = {mark: len(next(csv.reader([first], delimiter=mark), [])) for mark in ",;\t|"}
    if (mark := max(columns, key=lambda mark: columns[mark])) != ",":
        raise ValueError(f"columns are separated by {mark!r}; expected commas")
    frame = read_csv(path, skipinitialspace=True)
    if not isinstance(frame.index, pd.RangeIndex):
        raise ValueError("rows have more cells than the first line has names of columns")
    names = list(map(str, frame.columns))
    counted = any(names == [str(start + i) for i in range(len(names))] for start in (0, 1))
    if len(frame) and not counted and all(map(_is_a_value, names, [frame[one] for one in frame])):
        raise ValueError(
            f"the first line is a row of data, {first.strip()!r:.60}; expected names of columns"
        )
    if names and names[0] == "Unnamed: 0":
        numbers = frame.iloc[:, 0]
        if numbers.dtype.kind == "i" and numbers.is_unique:
            frame = frame.iloc[:, 1:]
    return frame


def _is_a_value(name: str, column: "pd.Series[Any]") -> bool:
    """Whether a column's name is a number like its values, or is one of its values."""
    if not _is_number(column):
        return name in set(column.astype(str))
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def _check(name: str, frame: "pd.DataFrame", label: str) -> None:
    """Refuse too few rows, missing or infinite values, and labels that are fractions."""
    if len(frame) < 3:
        raise DataError(f"data '{name}' has {len(frame)} rows; expected 3 or more")
    for column, values in frame.items():
        missing = values.isna() | values.isin([np.inf, -np.inf])
        if missing.any():
            raise DataError(
                f"data '{name}': column '{column}' has no value in {int(missing.sum())} rows, the "
                f"first is row {int(missing.argmax()) + 1} (in a CSV file, NA, None and null stand "
                "for no value, too). Fill them in or drop these rows"
            )
    if _is_number(frame[label]) and (frame[label] % 1 != 0).any():
        raise DataError(
            f"data '{name}': the label column '{label}' holds fractions; expected classes. Name "
            "another column in task.label"
        )


def _is_number(values: "pd.Series[Any]") -> bool:
    return values.dtype.kind in "iuf"


def _codes(
    where: str, name: str, known: "pd.Series[Any]", values: "pd.Series[Any]"
) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Encode categories as their indices in sorted order.

    Args:
        where: Description of the column, for messages.
        name: Name of the data, for messages.
        known: Values that define the categories.
        values: Values to encode.

    Returns:
        The categories, and the index of each value's category, int64.

    Raises:
        DataError: A value is not among the categories, or there is only one category.
    """
    import pandas as pd

    categories = pd.Index(np.unique(known.to_numpy() if _is_number(known) else known.astype(str)))
    codes = categories.get_indexer(pd.Index(values if _is_number(known) else values.astype(str)))
    if (codes < 0).any():
        raise DataError(
            f"{where} of the test rows has '{values[codes < 0].iloc[0]}', which no row of data "
            f"'{name}' has; expected one of {', '.join(map(str, categories[:10]))}"
        )
    if len(categories) < 2:
        raise _constant(where, name, categories[0])
    return tuple(map(str, categories)), codes.astype(np.int64)


def _standardised(
    where: str, name: str, values: "pd.Series[Any]", training: "pd.Series[Any]"
) -> tuple[float, float, NDArray[np.float32]]:
    """Standardise numbers by those of the training rows.

    Returns:
        Mean, standard deviation, and the standardised numbers (N, 1).

    Raises:
        DataError: Floats cannot hold the squares of the numbers, or how they differ.
    """
    with np.errstate(all="ignore"):
        mean, scale = float(training.mean()), float(training.std(ddof=0))
        numbers = ((values - mean) / scale).to_numpy().astype(np.float32)[:, None]
    if not math.isfinite(scale) or not np.isfinite(numbers).all():
        raise DataError(
            f"data '{name}': {where} cannot be standardised (values from {values.min()} to "
            f"{values.max()}): floats do not hold the squares of such numbers, or how they differ. "
            "Rescale the column, leave it out, or name it in task.categorical"
        )
    return mean, scale, numbers


def _constant(where: str, name: str, value: object) -> DataError:
    return DataError(
        f"data '{name}': {where} is {value} in every training row. Leave the "
        "column out, or name another one in task.label if it is the label"
    )
