"""Files whose ends a kill, a full disk or a power failure cut off cost no row."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support.interceptions import intercepted
from support.tiny import rows, same, scenario, timeless

from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import DiskFull
from fedsim.report.pages import write_page
from fedsim.runs.recording import Recording
from fedsim.runs.tables import TABLES, read_table

pytestmark = pytest.mark.usefixtures("unreported")

CUT = {
    "a row": ("findings.csv", -20),
    "several rows": ("findings.csv", -1500),
    "the head": ("findings.csv", 30),
    "all findings": ("findings.csv", 0),
    "an attack": ("attacks.jsonl", -20),
    "an event": ("log.jsonl", -5),
    "the last round's utility": ("utility.csv", -4),
    "all utility": ("utility.csv", 0),
    "a point": ("points.csv", -3),
    "the checkpoint": ("checkpoint/global.safetensors", -9),
    "an update": ("tape/r0001/c0000.safetensors", -9),
    "the last round's record": ("tape/index.jsonl", -9),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    simulate(scenario(record={"keep": "all"}, training={"clients_per_round": 6}), folder)
    return folder


def cut(folder: Path, name: str, end: int) -> None:
    path = folder / name
    os.truncate(path, path.stat().st_size + end if end < 0 else end)


def tables(folder: Path) -> list[object]:
    points = [row["point"] for row in rows(folder, "points.csv")]
    return [timeless(folder), rows(folder, "utility.csv"), points]


def recorded(folder: Path) -> dict[int, object]:
    found = Recording(folder / "tape")
    assert all(dict(one.update.tensors) for one in found)  # as their digests say
    return found.rounds


@pytest.mark.parametrize("what", CUT)
def test_a_run_whose_files_were_cut_off_is_resumed_to_the_same_tables(what, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    cut(folder, *CUT[what])
    run = scenario(record={"keep": "all"}, training={"clients_per_round": 6})
    simulate(run, folder, resume=True)
    assert tables(folder) == tables(whole)
    assert recorded(folder) == recorded(whole)
    ours, theirs = (load_file(each / "checkpoint/global.safetensors") for each in (folder, whole))
    assert same(ours, theirs)


@pytest.mark.parametrize("what", ["a row", "several rows", "the head", "an attack"])
def test_an_attack_on_a_recorded_run_repeats_what_was_cut_off(what, whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    cut(folder, *CUT[what])
    attack(folder)
    assert timeless(folder) == timeless(whole)


def test_the_line_of_a_round_after_a_cut_one_can_be_read(tmp_path):
    first = Recording(tmp_path / "tape")
    for number in (1, 2):
        one = intercepted(scenario(), 0, number)
        first.close(number, [first.write(one)], {}, [one.victim])
    cut(tmp_path, "tape/index.jsonl", -9)
    again = Recording(tmp_path / "tape")
    assert [*again.rounds] == [1]
    one = intercepted(scenario(), 0, 2)
    again.close(2, [again.write(one)], {}, [one.victim])
    assert [*Recording(tmp_path / "tape").rounds] == [1, 2]


def test_rows_that_were_written_after_a_cut_one_are_left_out(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("point,seconds\na,1.0\nb,1.b,1.0\nc,1.0\n")
    assert read_table(path, TABLES["points.csv"]) == ([["a", "1.0"], ["c", "1.0"]], True)


def test_a_page_without_room_is_an_error_of_the_disk(tmp_path, monkeypatch):
    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(DiskFull, match=r"report\.html cannot be written: No space left"):
        write_page(tmp_path / "report.html", "text")
    assert [*tmp_path.iterdir()] == []


def test_drafts_of_a_page_do_not_outlive_killed_processes(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for number in (ended.pid, os.getppid()):
        (tmp_path / f".report.html.{number}").touch()
    write_page(tmp_path / "report.html", "text")
    left = {f".report.html.{os.getppid()}", "report.html"}
    assert {path.name for path in tmp_path.iterdir()} == left
