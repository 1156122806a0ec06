"""Local data sets: what is wrong with their folder or a file is said in one line."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedsim.errors import DataError
from fedsim.scenario import Scenario
from fedsim.tasks.images import Images
from fedsim.tasks.local_data import data_folder, find_file
from fedsim.tasks.speech.local import local_recordings
from fedsim.tasks.tabular import Tabular


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


def test_in_python_too_the_environment_names_the_folder(tmp_path, monkeypatch):
    (tmp_path / "scenario.toml").write_text('[task]\nname = "images"\n')
    monkeypatch.setenv("FEDSIM_DATA", str(tmp_path))
    assert Images().folder == tmp_path
    assert Images(folder=tmp_path / "other").folder == tmp_path / "other"
    file = tmp_path / "scenario.toml"
    assert Scenario.load(file).build_task().folder == tmp_path
    assert Scenario.load(file, data=tmp_path / "x").build_task().folder == tmp_path / "x"
    stated = [f'data_dir="{tmp_path / "stated"}"']
    assert Scenario.load(file, stated).build_task().folder == tmp_path
    (tmp_path / "stated").mkdir()
    assert Scenario.load(file, stated).build_task().folder == tmp_path / "stated"
    monkeypatch.setenv("FEDSIM_DATA", "")
    assert Images().folder is None
    assert Scenario.load(file).build_task().folder is None


def test_an_empty_folder_may_be_one_that_was_not_mounted(tmp_path):
    with pytest.raises(DataError, match=rf"mount one \(--volume DIR:{tmp_path}:ro\)$"):
        looked_up(tmp_path)


def test_a_damaged_picture_is_named(tmp_path):
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        pixels = rng.integers(0, 256, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pets" / label / "1.png")
    file = tmp_path / "pets/dog/1.png"
    before, middle, after = file.read_bytes().rpartition(b"IDAT")
    file.write_bytes(before + b"I\0AT" + after)
    assert middle
    with pytest.raises(DataError, match=r"dog/1\.png cannot be read as an image: broken PNG"):
        Images(data="pets", folder=tmp_path).examples  # noqa: B018


def test_a_parquet_file_with_a_damaged_description_is_named(tmp_path):
    table = pa.table({"size": [1.0, 2.0, 3.0], "label": [0, 1, 0]})
    said = {"pandas": json.dumps({"columns": [{"name": "size"}], "index_columns": ["size"]})}
    pq.write_table(table.replace_schema_metadata(said), tmp_path / "damaged.parquet")
    with pytest.raises(DataError, match=r"damaged\.parquet cannot be read: KeyError"):
        Tabular(data="damaged", folder=tmp_path).examples  # noqa: B018


def image_files(name: str, folder: Path) -> Path:
    return find_file(name, folder, inside="images", endings=[".npz"], built_in="digits")


@pytest.mark.parametrize("load", [image_files, local_recordings])
def test_a_path_that_leads_nowhere_is_answered_by_the_folders_that_were_searched(
    load, tmp_path, monkeypatch
):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "other.txt").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"no data './pictues': .* one of .*data, .*with its end"):
        load("./pictues", tmp_path / "data")


def test_a_name_of_what_lies_elsewhere_is_answered_by_its_path(tmp_path):
    (tmp_path / "mnist.npz").touch()
    with pytest.raises(DataError, match=r"a path with a slash, such as \./pictures\.npz$"):
        Images(data="pictures", folder=tmp_path).examples  # noqa: B018
