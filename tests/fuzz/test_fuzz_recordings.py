"""Run folders with broken files: one clear error, or results of what can be read."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuzzing import BREAKS, break_file, fuzz, refused
from support.tiny import scenario

from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.report import summary, write_report
from fedsim.results.loading import load

RUN = {"record": {"keep": "all"}, "training": {"rounds": 2, "clients": 3, "clients_per_round": 3}}

COMMANDS = {
    "attack": lambda folder: attack(folder),
    "report": lambda folder: write_report(folder),
    "summary": lambda folder: summary(folder),
    "load": lambda folder: _read(load(folder)),
    "resume": lambda folder: simulate(scenario(**RUN), folder, resume=True),
}


def _read(found) -> None:
    for name in ("findings", "utility"):
        getattr(found, name)
    for one in found.interceptions:
        dict(one.update.tensors)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    simulate(scenario(**RUN), folder)
    return folder


@given(
    changes=st.lists(st.tuples(st.integers(0, 10**6), BREAKS), min_size=1, max_size=2),
    command=st.sampled_from(sorted(COMMANDS)),
)
@fuzz
def test_a_broken_run_folder_is_read_as_far_as_it_goes_or_refused(changes, command, whole):
    with tempfile.TemporaryDirectory() as below:
        folder = Path(below) / "run"
        shutil.copytree(whole, folder)
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        for number, (how, where, what) in changes:
            path = paths[number % len(paths)]
            if path.is_file() and path.stat().st_size:
                break_file(path, how, where, what)
        refused(lambda: COMMANDS[command](folder))
