"""The folder of local data sets: what is wrong with it is said in one line, with a way out."""

from pathlib import Path

import pytest

from fedsim.errors import DataError
from fedsim.tasks.local_data import data_folder


def looked_up(folder: Path | None) -> Path:
    return data_folder(folder, what="data 'mnist'", use='data = "digits"')


def test_a_folder_with_something_in_it_is_taken(tmp_path):
    (tmp_path / "mnist.npz").touch()
    assert looked_up(tmp_path) == tmp_path


def test_what_is_wrong_is_one_line_that_names_a_way_out(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    cases = {
        None: "is looked up in a folder, and none is given",
        tmp_path / "nowhere": "nowhere, which is not there",
        tmp_path / "file": "file, which is not there",
        tmp_path / "empty": "empty, which is empty",
    }
    for folder, reason in cases.items():
        with pytest.raises(DataError, match=rf"^data 'mnist' .*{reason}") as caught:
            looked_up(folder)
        assert "\n" not in str(caught.value)
        assert 'Use data = "digits" (built in), or name a folder with --data DIR' in str(
            caught.value
        )


def test_an_empty_folder_may_be_one_that_was_not_mounted(tmp_path):
    with pytest.raises(DataError, match=rf"mount one \(--volume DIR:{tmp_path}:ro\)$"):
        looked_up(tmp_path)
