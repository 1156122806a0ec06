"""What Ray sessions and simulations leave behind when their processes are killed."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from fedsim.engine.session_folder import NEW, PREFIX, SessionFolder


@pytest.fixture
def below(tmp_path, monkeypatch):
    """A short folder for temporary ones, which holds what a killed process left."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("fedsim.engine.session_folder.LONGEST", 1000)
    (tmp_path / f"{PREFIX}killed" / "session_1").mkdir(parents=True)
    (tmp_path / f"{PREFIX}killed" / ".lock").touch()
    return tmp_path


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_session_removes_its_folder_and_those_of_killed_processes(below):
    (below / "other").mkdir()
    (below / f"{PREFIX}link").symlink_to(below / "other")
    folder = SessionFolder()
    assert folder.path.parent == below
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert names(below) == {folder.path.name, "other", f"{PREFIX}link"}
    folder.close()
    assert names(below) == {"other", f"{PREFIX}link"}


def test_folders_of_living_processes_and_new_ones_stay(below):
    held, new, old = SessionFolder(), below / f"{PREFIX}new", below / f"{PREFIX}old"
    new.mkdir()
    old.mkdir()
    os.utime(old, (time.time() - 2 * NEW,) * 2)
    code = "from fedsim.engine.session_folder import SessionFolder; SessionFolder().close()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(below) >= {held.path.name, new.name}
    assert SessionFolder().path is not None
    assert old.name not in names(below)
    held.close()


def test_a_path_that_is_too_long_for_sockets_is_left_to_ray(tmp_path, monkeypatch):
    long = tmp_path / ("a" * 60)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    folder = SessionFolder()
    assert folder.path is None
    folder.close()
    assert names(long) == set()


ORPHAN = """
import subprocess, sys, time
from fedsim.engine import flower
sys.stdin.readline()
flower._end_with_parent()
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""


def test_a_simulation_ends_with_the_process_that_started_it():
    orphan = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    orphan.stdin.write("a scenario\n")
    orphan.stdin.flush()
    child = psutil.Process(int(orphan.stdout.readline()))
    assert orphan.poll() is None
    orphan.stdin.close()  # as when the parent is killed
    assert orphan.wait(timeout=60) == 1
    orphan.stdout.close()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
