"""What Ray sessions and simulations leave behind when their processes are killed."""

import subprocess
import sys

import psutil

from fedsim.engine.session_folder import SessionFolder
from fedsim.temporary import RAY


def test_a_session_has_a_folder_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("fedsim.engine.session_folder.LONGEST", 1000)
    folder = SessionFolder()
    assert [*tmp_path.glob(f"{RAY}*")] == [folder.path]
    (folder.path / "session_1").mkdir()
    folder.close()
    assert not [*tmp_path.iterdir()]


def test_a_path_that_is_too_long_for_sockets_is_left_to_ray(tmp_path, monkeypatch):
    long = tmp_path / ("a" * 60)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    folder = SessionFolder()
    assert folder.path is None
    folder.close()
    assert not [*long.iterdir()]


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
