"""A recorded run is attacked and diagnosed by code of the user's own, from where it lies."""

import os
import shutil

import pytest
from support.commands import python
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate

SOURCE = 'from adversaries import IDLG\nclass Mine(IDLG):\n    """An adversary of a user."""\n'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded") / "run"
    simulate(scenario(training={"rounds": 1}, adversaries=[]), folder)
    return folder


@pytest.fixture
def here(recorded, tmp_path):
    """A folder with a copy of the run in it."""
    shutil.copytree(recorded, tmp_path / "run")
    return tmp_path


def other_folder(here):
    """A folder beside the run, with the adversary's module in it."""
    other = here / "other"
    other.mkdir()
    (other / "lab.py").write_text(SOURCE)
    return other


def fedsim(folder, *words):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return python("-m", "fedsim.cli", *words, folder=folder, env=env)


def test_a_module_of_the_current_folder_is_found(here):
    (here / "lab.py").write_text(SOURCE)
    done = fedsim(here, "diagnose", "run", "--adversary", "lab:Mine")
    assert done.returncode == 0, done.stderr
    assert "idlg is not attacked yet" in done.stdout
    words = ("--adversary", "lab:Mine", "--set", "engine.workers=2")
    done = fedsim(here, "attack", "run", *words)
    assert done.returncode == 0, done.stderr
    assert {row["status"] for row in rows(here / "run")} == {"ok"}


def test_a_module_beside_the_scenario_that_names_it_is_found(here):
    other = other_folder(here)
    (other / "attacks.toml").write_text('[[adversaries]]\nname = "lab:Mine"\nlabel = "here"\n')
    done = fedsim(here, "attack", "run", "other/attacks.toml")
    assert done.returncode == 0, done.stderr
    assert {row["label"] for row in rows(here / "run")} == {"here"}


def test_code_that_another_run_names_is_imported_only_if_it_is_trusted(here):
    other = other_folder(here)
    (other / "scenario.toml").write_text('search_dirs = []\n[[adversaries]]\nname = "lab:Mine"\n')
    done = fedsim(here, "attack", "run", "other/scenario.toml")
    assert done.returncode == 2
    assert "imported only with --trust" in done.stderr + done.stdout
    assert rows(here / "run", empty=True) == []
