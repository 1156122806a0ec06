"""A run folder in Python: tables, reconstructions as tensors, recorded interceptions."""

import pytest
import torch
from support.tiny import rows, scenario

import fedsim
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "run"
    dlg = {"name": "dlg", "victims": 1, "iterations": 2, "restarts": 0}
    swept = scenario(
        threat={"grants": "white-box"},
        training={"rounds": 1, "batch_size": 2},
        adversaries=[{"name": "llg"}, dlg],
        sweep={"seed": [3, 4]},
    )
    simulate(swept, folder)
    return fedsim.load(folder)


def test_artifacts_are_a_table_from_which_the_tensors_are_read(run):
    table = run.artifacts
    assert list(table["point"]) == ["seed=3", "seed=4"]
    assert set(table["label"]) == {"dlg"}, "labels alone have no files"
    assert {*table["artifact"]} == {row["artifact"] for row in rows(run.folder)} - {""}
    for path in table["tensors"]:
        found = run.reconstruction(path)
        assert len(found.inputs) == len(found.labels) == 2
        assert found.inputs[0].shape == (1, 8, 8)
        assert found.inputs[0].dtype == torch.float32


def test_numbers_of_the_findings_are_numbers(run):
    found = run.findings
    assert len(found[found["seed"] == 4]) == len(found[found["batch_size"] == 2]) // 2 > 0
    kinds = {name: str(found[name].dtype) for name in ("seed", "local_steps", "inclusion")}
    assert kinds == {"seed": "Int64", "local_steps": "Int64", "inclusion": "float64"}
    assert len(found.merge(run.diagnosis, on=["seed", "round", "client", "label"])) > 0


def test_a_file_that_is_missing_is_an_empty_cell_and_one_clear_error(run):
    path = run.artifacts["tensors"][0]
    content = (run.folder / path).read_bytes()
    (run.folder / path).unlink()
    try:
        assert list(run.artifacts["tensors"] == "") == [True, False]
        with pytest.raises(RunFolderError, match="holds no file"):
            run.reconstruction(path)
    finally:
        (run.folder / path).write_bytes(content)


@pytest.mark.parametrize("path", ["../secret.safetensors", "", "/etc/hostname", "link"])
def test_files_outside_the_folder_are_not_read(run, tmp_path, path):
    (tmp_path / "other").write_bytes(b"")
    if path == "link":
        (run.folder / "link").symlink_to(tmp_path / "other")
    with pytest.raises(RunFolderError, match="holds no file"):
        run.reconstruction(path)


def test_interceptions_are_those_of_all_points(run):
    found = run.interceptions
    assert len(found) == 8
    assert [one.victim for one in found[:4]] == [one.victim for one in run.recording("seed=3")]
    assert all(len(one.update.tensors) > 0 for one in found)


def test_a_point_that_is_not_there_is_named_and_is_not_empty(run):
    for point in ("", "nope"):
        with pytest.raises(RunFolderError, match=rf"no point '{point}'\. Known: seed="):
            run.recording(point)


def test_the_old_name_of_the_module_leads_here():
    with pytest.warns(DeprecationWarning, match="is now"):
        from fedsim.runs.loading import load
    assert load is fedsim.load
