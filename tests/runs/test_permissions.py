"""A run folder is its owner's alone, whatever writes to it."""

import os
import stat
import sys
from pathlib import Path

import pytest
from support.tiny import scenario
from support.tiny_figures import toml

from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.report import write_report
from fedsim.reproduce.console import reproduce

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="permissions are POSIX"),
    pytest.mark.usefixtures("unreported"),
]
SWEPT = {
    "threat": {"grants": "full", "victims": 1},
    "sweep": {"training.batch_size": [1, 2]},
    "sinks": {"tensorboard": {}},
    "record": {"keep": "all"},
}


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def permissions(folder: Path) -> dict[str, set[int]]:
    """The permissions of the folders and of the files at and below a folder."""
    found: dict[str, set[int]] = {"folders": set(), "files": set()}
    for path in (folder, *folder.rglob("*")):
        kind = "folders" if path.is_dir() else "files"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found


def test_a_run_folder_and_all_in_it_are_their_owners_alone(tmp_path):
    pytest.importorskip("tensorboard")
    (out := tmp_path / "runs" / "run").mkdir(parents=True)  # one that was there, and empty
    simulate(scenario(**SWEPT), out)
    attack(out, changes={"adversaries": [{"name": "idlg"}]})
    write_report(out, "markdown")
    assert {"tape", "artifacts", "tensorboard", "attacks"} <= {one.name for one in out.iterdir()}
    assert permissions(out) == {"folders": {0o700}, "files": {0o600}}
    assert stat.S_IMODE(out.parent.stat().st_mode) == 0o755


def test_a_shared_run_folder_follows_the_umask(tmp_path):
    shared = {"record": {"keep": "all", "shared": True}}
    simulate(scenario(**SWEPT | shared), tmp_path / "run")
    write_report(tmp_path / "run", "markdown")
    assert permissions(tmp_path / "run") == {"folders": {0o755}, "files": {0o644}}
    (tmp_path / "run").chmod(0o750)  # what is written later is as readable as its folder
    (tmp_path / "run" / "report.md").unlink()
    report = write_report(tmp_path / "run", "markdown")
    assert stat.S_IMODE(report.stat().st_mode) == 0o640


@pytest.mark.reported
def test_a_folder_that_may_not_be_written_to_is_said(tmp_path):
    simulate(scenario(), tmp_path / "run")
    (tmp_path / "run").chmod(0o500)
    late = {"adversaries": [{"name": "idlg"}]}
    if os.geteuid():
        with pytest.raises(RunFolderError, match="cannot be written"):
            attack(tmp_path / "run", changes=late)
    else:  # who may write everywhere
        assert attack(tmp_path / "run", changes=late).exists()


def test_a_reproduction_and_its_pages_are_their_owners_alone(tmp_path):
    reproduce(toml(tmp_path), tmp_path / "out", overrides=["paper.repetitions=1"])
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755
    assert permissions(tmp_path / "out/test") == {"folders": {0o700}, "files": {0o600}}
