"""Labelled texts: embedded messages, tables under --data, or data sets of the Hub."""

import functools
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB, installing
from fedsim.references import is_reference
from fedsim.seeds import numpy_generator
from fedsim.tasks.local_data import (
    as_rows,
    call_loader,
    find_file,
    hub_splits,
    read_rows,
    read_text,
)
from fedsim.tasks.partitioned import sha256
from fedsim.tasks.text.messages import TOPICS, messages, public_messages
from fedsim.tasks.transcripts import text_files

MESSAGES = "messages"
PACKAGES = ("rouge_score", "tokenizers")
TEXT = ("text", "sentence", "message", "content", "review")
LABEL = ("label", "labels", "class", "category", "topic")
SENDER = ("sender", "author", "user", "speaker")
"""The names of columns that are looked for, in this order."""

ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet")
EXPECTED = (
    f"a column of texts ({', '.join(TEXT)}) and one of labels ({', '.join(LABEL)}), integers from "
    "0 or names"
)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Labelled texts, all splits together.

    Attributes:
        texts: The texts.
        labels: Their labels, int64 of shape (N,) in [0, classes).
        names: The names of the labels.
        train: Indices of the training split, int64.
        test: Indices of the test split, int64.
        senders: Who wrote each text; None if the data set does not say.
    """

    texts: tuple[str, ...]
    labels: Tensor
    names: tuple[str, ...]
    train: Tensor
    test: Tensor
    senders: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def fingerprint(self) -> str:
        """SHA-256 of texts, labels and senders; the split does not enter it."""
        return sha256((self.texts, self.senders), self.labels)


@dataclass(frozen=True, slots=True)
class _Part:
    """What a source holds; `tests` says which rows are the test split, None if it has none."""

    texts: tuple[str, ...]
    labels: tuple[Any, ...] | None
    senders: tuple[str, ...] | None = None
    tests: tuple[bool, ...] | None = None
    names: tuple[str, ...] = ()


def load(
    name: str,
    folder: Path | None,
    *,
    test: str | None = None,
    columns: tuple[str | None, str | None] = (None, None),
    labelled: bool = True,
    test_fraction: float,
    seed: int,
) -> Texts:
    """Load texts by name.

    Args:
        name: "messages", a table under `folder` or its path, "hub:OWNER/SET[/CONFIG]", or
            "module:function".
        folder: Where tables are looked up.
        test: The name of another table, whose rows are the test split.
        columns: The names of the columns of texts and of labels, if they are not the usual ones.
        labelled: Whether labels are needed.
        test_fraction: The share that becomes the test split if the source has none.
        seed: Draws that test split.

    Raises:
        DataError: There is no such data, or it cannot be used.
    """
    if lacking := [one for one in PACKAGES if importlib.util.find_spec(one) is None]:
        raise DataError(f"text needs {', '.join(lacking)}: {installing('text')}")
    found = _part(name, folder, columns, labelled)
    if test is not None:
        found = _joined(found, _part(test, folder, columns, labelled))
    for number, text in enumerate(found.texts, 1):
        if not text.strip():
            raise DataError(f"data '{name}': text {number} is empty; expected a word at least")
    labels, names = _numbered(name, found, labelled)
    if len(found.texts) < 3:
        raise DataError(f"data '{name}' has {len(found.texts)} texts; expected 3 at least")
    total = len(found.texts)
    if found.tests is None:
        order = numpy_generator(seed, "test split").permutation(total)
        tests = np.zeros(total, dtype=bool)
        tests[order[: min(max(1, round(test_fraction * total)), total - 1)]] = True
    else:
        tests = np.asarray(found.tests)
    return Texts(
        found.texts,
        torch.from_numpy(labels),
        names,
        train=torch.from_numpy(np.flatnonzero(~tests)),
        test=torch.from_numpy(np.flatnonzero(tests)),
        senders=found.senders,
    )


def public_texts(name: str, folder: Path | None) -> tuple[str, ...]:
    """Load texts that everybody knows, without repetitions.

    Args:
        name: "messages" for 2,000 embedded ones, the stem of a text file, or the name of a folder
            of text files. Each line of at least two words is a text.
        folder: Where files are looked up, there or in its subfolder `lm`.

    Raises:
        DataError: There are none.
    """
    if name == MESSAGES:
        return public_messages()
    found: dict[str, None] = {}
    for path in text_files(name, folder, MESSAGES, key="public"):
        lines = read_text(path).splitlines()
        found |= {line.strip(): None for line in lines if len(line.split()) > 1}
    if not found:
        raise DataError(f"public text '{name}' in {folder} has no line of two words")
    return tuple(found)


def _numbered(name: str, part: _Part, labelled: bool) -> tuple[Any, tuple[str, ...]]:
    """The labels as integers from 0, int64 of shape (N,), and their names."""
    if part.labels is None:
        return np.zeros(len(part.texts), dtype=np.int64), ("text",)
    for number, one in enumerate(part.labels, 1):
        if one is None or one == "":
            raise DataError(f"data '{name}': text {number} has no label")
        if _is_fraction(one):
            raise DataError(
                f"data '{name}': text {number} has the label {one}; expected an integer from 0 "
                "or a name (round scores to classes, or name another column in task.label_column)"
            )
    try:
        numbers = [int(one) for one in part.labels]
    except (TypeError, ValueError):
        written = [str(one) for one in part.labels]
        names = part.names or tuple(sorted(set(written)))
        if unknown := sorted(set(written) - set(names)):
            raise DataError(
                f"data '{name}' has the labels {', '.join(unknown)}; known: {', '.join(names)}"
            ) from None
        at = {one: number for number, one in enumerate(names)}
        numbers = [at[one] for one in written]
    else:
        count = len(part.names) or max(numbers) + 1
        wrong = next((i for i, one in enumerate(numbers) if not 0 <= one < count), None)
        if wrong is not None:
            raise DataError(
                f"data '{name}': text {wrong + 1} has the label {numbers[wrong]}; expected 0 to "
                f"{count - 1} (sets of the GLUE benchmark hide those of the test split as -1)"
            )
        if count > len(numbers):
            raise DataError(
                f"data '{name}' has labels up to {max(numbers)} on {len(numbers)} texts; expected "
                "classes numbered from 0 without gaps"
            )
        names = part.names or tuple(map(str, range(count)))
    if labelled and len(names) < 2:
        raise DataError(f"data '{name}' has a single label; a classifier needs two")
    return np.asarray(numbers, dtype=np.int64), names


def _is_fraction(label: object) -> bool:
    """Whether a label is a number that is no integer; of texts, one between two integers."""
    if not isinstance(label, str):
        return isinstance(label, float) and not label.is_integer()
    try:
        return float(label) % 1 > 0  # "nan" and "inf" may be names
    except ValueError:
        return False


def _joined(train: _Part, test: _Part) -> _Part:
    """Two tables as one; the rows of the second are the test split."""
    both = train.labels is not None and test.labels is not None
    labels = (*(train.labels or ()), *(test.labels or ())) if both else None
    senders = None
    if train.senders is not None:
        senders = (*train.senders, *(test.senders or [""] * len(test.texts)))
    tests = (*[False] * len(train.texts), *[True] * len(test.texts))
    return _Part((*train.texts, *test.texts), labels, senders, tests, train.names)


def _part(
    name: str, folder: Path | None, columns: tuple[str | None, str | None], labelled: bool
) -> _Part:
    if name == MESSAGES:
        senders, topics, texts = zip(*messages(), strict=True)
        return _Part(texts, topics, senders, names=TOPICS)
    if name.startswith(HUB):
        return _hub(name, columns, labelled)
    if is_reference(name):
        return _own(name, columns, labelled)
    path = find_file(name, folder, inside="text", endings=ENDINGS, built_in=MESSAGES)
    return _table(path, path.stat().st_mtime_ns, columns, labelled)


@functools.lru_cache(maxsize=4)
def _table(
    path: Path, changed: int, columns: tuple[str | None, str | None], labelled: bool
) -> _Part:
    return _read(read_rows(path), str(path), columns, labelled)


def _own(name: str, columns: tuple[str | None, str | None], labelled: bool) -> _Part:
    """What a function of the user's own returns: (texts, labels), or a table."""
    found = call_loader(name, f"(texts, labels), or a table with {EXPECTED}")
    if isinstance(found, tuple) and len(found) == 2:
        found = {"text": list(found[0]), "label": np.asarray(found[1])}
    try:
        rows = as_rows(found)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{name}() returned no table: {error}; expected (texts, labels) of the same length, or "
            f"a DataFrame, a list of dictionaries or columns by name with {EXPECTED}"
        ) from error
    return _read(rows, f"{name}()", columns, labelled)


def _read(
    rows: list[dict[str, Any]], where: str, columns: tuple[str | None, str | None], labelled: bool
) -> _Part:
    """The texts, labels and senders in the rows of a table."""
    if not rows:
        raise DataError(f"{where} has no rows; expected {EXPECTED}")
    text, label = _columns(where, rows[0], columns, labelled)
    for number, row in enumerate(rows, 1):
        if not isinstance(row.get(text), str) or (label and row.get(label) is None):
            raise DataError(
                f"{where}: row {number} has {dict(row)}; expected a text in '{text}'"
                + (f" and a label in '{label}'" if label else "")
            )
    sender = next((key for key in SENDER if key in rows[0]), None)
    tests = tuple(row.get("split") == "test" for row in rows)
    return _Part(
        tuple(row[text] for row in rows),
        tuple(row[label] for row in rows) if label else None,
        tuple(str(row.get(sender)) for row in rows) if sender else None,
        tests if any(tests) and not all(tests) else None,
    )


def _columns(
    where: str, known: Iterable[str], asked: Sequence[str | None], labelled: bool
) -> tuple[str, str | None]:
    """The names of the columns of texts and of labels."""
    known = [name for name in known if name is not None]  # as of cells beyond the head
    for setting, name in zip(("text_column", "label_column"), asked, strict=True):
        if name is not None and name not in known:
            raise DataError(
                f"task.{setting} = '{name}', and {where} has no such column. "
                f"{did_you_mean(name, known)}"
            )
    text = asked[0] or next((key for key in TEXT if key in known), None)
    label = asked[1] or next((key for key in LABEL if key in known), None)
    if text is None or (labelled and label is None):
        raise DataError(
            f"{where} has the columns {', '.join(known)}; expected {EXPECTED}. Name others with "
            "task.text_column and task.label_column"
        )
    return text, label


def _hub(name: str, columns: tuple[str | None, str | None], labelled: bool) -> _Part:
    loaded = hub_splits(name, f"under --data as a table (jsonl, csv, tsv) with {EXPECTED}")
    parts = {key: loaded[key] for key in ("train", "validation", "test") if key in loaded}
    if "train" not in parts:
        raise DataError(f"data '{name}' has the splits {', '.join(loaded)}; expected a 'train'")
    text, label = _columns(f"data '{name}'", parts["train"].features, columns, labelled)

    # Benchmarks such as GLUE hide the labels of their test split.
    splits = [key for key in ("test", "validation") if key in parts]
    judge = next((key for key in splits if label is None or min(parts[key][label]) != -1), None)
    chosen = [parts["train"], *([parts[judge]] if judge else [])]
    texts = tuple(str(one) for part in chosen for one in part[text])
    tests = tuple(at > 0 for at, part in enumerate(chosen) for _ in range(len(part)))
    return _Part(
        texts,
        tuple(one for part in chosen for one in part[label]) if label else None,
        tests=tests if judge else None,
        names=tuple(getattr(parts["train"].features[label], "names", ())) if label else (),
    )
