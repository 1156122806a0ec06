"""Temporary folders of processes that were killed go with the next run, and no others."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from filelock import FileLock
from support.tiny import scenario

import fedsim
from fedsim.engine.ray.worker import AttackWorker
from fedsim.engine.simulate import simulate, train
from fedsim.isolation import process
from fedsim.temporary import ISOLATION, NEW, RAY, TemporaryFolder, remove_stale

KINDS = pytest.mark.parametrize("prefix", [ISOLATION, RAY])


@pytest.fixture
def below(tmp_path, monkeypatch):
    """The folder of temporary files, with what killed processes left; a number is used again."""
    below = tmp_path / "t"
    below.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(below))
    monkeypatch.setenv("TMPDIR", str(below))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for name in (f"{ISOLATION}{os.getpid()}-killed", f"{RAY}killed"):
        (below / name / "deep" / "er").mkdir(parents=True)
        (below / name / ".lock").touch()
    return below


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_another_process_may_remove_a_folder_before_it_is_locked(below, monkeypatch):
    plain, others = FileLock.acquire, []

    def late(self, *args, **settings):
        if len(others) < 3:  # two of killed processes, and the new one
            others.append(FileLock(self.lock_file, timeout=0))
            plain(others[-1])
        return plain(self, *args, **settings)

    monkeypatch.setattr(FileLock, "acquire", late)
    folder = TemporaryFolder(ISOLATION)
    assert str(folder.path) not in {str(Path(one.lock_file).parent) for one in others}
    assert folder.path.exists()
    folder.close()
    for other in others:
        other.release()


@KINDS
def test_a_folder_of_a_living_process_stays(below, prefix):
    folder = TemporaryFolder(prefix)
    assert names(below) == {folder.path.name}
    assert folder.path.stat().st_mode & 0o777 == 0o700
    code = "from fedsim.temporary import remove_stale; remove_stale()"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert names(below) == {folder.path.name}
    folder.close()
    assert names(below) == set()


@KINDS
def test_links_and_files_stay_and_so_do_new_folders_that_nobody_locked_yet(below, prefix):
    (below / "other").mkdir()
    (below / "other" / ".lock").touch()
    (below / f"{prefix}link").symlink_to(below / "other")
    (below / f"{prefix}file").touch()
    for name in ("new", "old"):
        (below / f"{prefix}{name}").mkdir()
    for name in ("old", "file"):
        os.utime(below / f"{prefix}{name}", (time.time() - 2 * NEW,) * 2)
    remove_stale()
    assert names(below) == {"other", *(f"{prefix}{name}" for name in ("link", "file", "new"))}
    assert names(below / "other") == {".lock"}


def test_a_run_without_isolated_adversaries_removes_them(below, tmp_path):
    simulate(scenario(adversaries=[]), tmp_path / "run")
    assert not names(below)


def test_so_does_an_attack_on_a_recorded_run(tmp_path, request):
    train(scenario(), tmp_path / "run")
    below = request.getfixturevalue("below")
    fedsim.attack(tmp_path / "run")
    assert not names(below)


def test_an_attack_worker_keeps_its_folders_in_that_of_the_session(below, tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.temporary._kept", "")
    monkeypatch.setattr(process, "_running", None)
    (tmp_path / "session").mkdir()
    worker = AttackWorker(str(tmp_path / "session"))
    process.server()
    assert [name for name in names(tmp_path / "session") if name.startswith(ISOLATION)]
    worker.end()
    assert not names(tmp_path / "session")


@KINDS
def test_a_folder_that_is_still_written_to_goes_the_next_time(below, prefix, monkeypatch):
    remove_stale()
    written = below / f"{prefix}raylet"
    written.mkdir()
    (written / ".lock").touch()
    whole = shutil.rmtree

    def rmtree(folder, **how):
        whole(folder, **how)
        if folder == written:
            (written / "logs").mkdir(parents=True)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    remove_stale()
    assert names(below) == {written.name}
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(below))
    remove_stale()
    assert not names(below)


def test_what_ends_during_a_run_goes_with_it(below, tmp_path):
    held = TemporaryFolder(RAY)

    def observer(event, **fields):
        if event == "ended":
            held._lock.release()

    simulate(scenario(adversaries=[]), tmp_path / "run", observer=observer)
    assert not names(below)


def test_processes_of_a_killed_ray_session_end_with_its_folder_and_no_others(below):
    code = "import time; time.sleep(60)"
    argument = f"--log_dir={below}/{RAY}killed/session_1/logs"
    raylet, other = (
        subprocess.Popen([sys.executable, "-c", code, argument, path])
        for path in ("/site-packages/ray/core", "mine")
    )
    try:
        remove_stale()
        assert raylet.poll() is not None
        assert other.poll() is None
    finally:
        for process in (raylet, other):
            process.kill()
            process.wait()
