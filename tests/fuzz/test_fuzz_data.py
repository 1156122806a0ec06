"""Data sets of the user's own with broken files: one clear error, or examples."""

import csv
import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import example, given
from hypothesis import strategies as st
from support.fuzzing import BREAKS, TEXTS, break_file, fuzz, refused
from support.image_sets import toy, written
from support.small_text import model

from fedsim.engine.preflight import preflight
from fedsim.scenario import Scenario
from fedsim.tasks.speech.voices import RATE

TASKS = {
    "npz": {"name": "images", "model": {"name": "mlp", "hidden": [4]}},
    "zipped": {"name": "images", "model": {"name": "mlp", "hidden": [4]}},
    "csv": {"name": "tabular"},
    "jsonl": {"name": "text", "vocabulary": 300, "model": model()},
    "tsv": {"name": "text", "vocabulary": 300, "model": model()},
    "wav": {
        "name": "speech", "vocabulary": 64, "auxiliary_fraction": 0.0,
        "model": {"name": "deepspeech", "hidden": 8, "recurrent": 4, "context": 1},
    },
}  # fmt: skip
NUMBER = itertools.count()
"""Data sets are kept by their paths: every example has a new one."""


def write(folder: Path, kind: str) -> None:
    """A small data set without a fault."""
    rng = np.random.default_rng(0)
    if kind == "npz":
        written(folder, **toy())
    elif kind == "zipped":
        np.savez_compressed(folder / "toy.npz", **toy())
    elif kind == "wav":
        rows = [("file", "speaker", "transcript")]
        for number in range(8):
            name = f"{number}.wav"
            soundfile.write(folder / name, 0.1 * rng.standard_normal(RATE // 2), RATE)
            rows.append((name, "abcd"[number % 4], "one two"))
        with (folder / "toy.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)
    elif kind == "jsonl":
        rows = [{"text": f"sentence {n} of them", "label": n % 2} for n in range(20)]
        (folder / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        between = "," if kind == "csv" else "\t"
        rows = [("text", "label") if kind == "tsv" else ("size", "label")]
        rows += [(f"{n / 3}", f"{n % 2}") for n in range(20)]
        text = "".join(between.join(row) + "\n" for row in rows)
        (folder / f"toy.{kind}").write_text(text)


def look(folder: Path, kind: str) -> Callable[[], object]:
    table = {
        "name": "fuzz",
        "data_dir": str(folder),
        "task": {**TASKS[kind], "data": "toy", "test_examples": 1},
        "training": {"algorithm": "fedsgd", "rounds": 1, "clients": 3, "batch_size": 1},
        "adversaries": [{"name": "bias-signs"}],
        "engine": {"workers": 1},
    }
    return lambda: preflight(Scenario.parse(table))


@pytest.mark.parametrize("kind", TASKS)
def test_without_a_fault_a_data_set_is_accepted(kind, tmp_path):
    write(tmp_path, kind)
    assert not refused(look(tmp_path, kind))


@given(
    kind=st.sampled_from(sorted(TASKS)),
    changes=st.lists(st.tuples(st.integers(0, 99), BREAKS), min_size=1, max_size=2),
)
@example(kind="tsv", changes=[(0, ("insert", 0.0, b"\n"))])
@fuzz
def test_broken_data_are_refused_clearly_or_read(kind, changes):
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / str(next(NUMBER))
        folder.mkdir()
        write(folder, kind)
        paths = sorted(folder.iterdir())
        for number, (how, where, what) in changes:
            path = paths[number % len(paths)]
            if path.is_file() and path.stat().st_size:
                break_file(path, how, where, what)
        refused(look(folder, kind))


ARRAYS = st.sampled_from(
    [
        np.zeros((0, 6, 5), np.uint8), np.zeros((9, 0, 5)), np.zeros((9, 6, 5, 3, 1)),
        np.full((9, 6, 5), np.nan), np.full((9, 6, 5), 1e300), np.zeros((9, 6, 5), bool),
        np.zeros((9, 6, 5), complex), np.array(["a"] * 9), np.array([{}] * 9, dtype=object),
        np.arange(9) % 3, np.arange(9) - 1, np.arange(9) + 0.5, np.float32(3.0), np.zeros((9, 1)),
        np.arange(9, dtype=np.uint64) + 2**63, np.zeros((9, 6, 5), ">f2"), np.ones((8, 6, 5)),
        np.zeros((9, 6, 5), "datetime64[s]"), np.zeros(9, "V3"), np.full(9, 2**40),
    ]
)  # fmt: skip


@given(x=ARRAYS, y=ARRAYS, more=st.dictionaries(TEXTS, ARRAYS, max_size=1))
@fuzz
def test_odd_arrays_are_refused_clearly_or_read(x, y, more):
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / str(next(NUMBER))
        folder.mkdir()
        try:
            np.savez(folder / "toy.npz", x=x, y=y, **more)
        except (TypeError, ValueError, UnicodeError):
            return  # numpy does not write it
        refused(look(folder, "npz"))
