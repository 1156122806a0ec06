"""Every example that an attack claims is kept as a tensor, as it was claimed."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.tiny import rows, scenario

from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.records import Reconstruction
from fedsim.runs.reconstructions import from_file, to_bytes
from fedsim.runs.tables import artifacts_place

IMAGES = torch.rand(3, 1, 4, 4, dtype=torch.float64)
UTTERANCES = [torch.rand(n, 5).to(torch.bfloat16) for n in (7, 2, 7)]


@pytest.mark.parametrize(
    ("claimed", "keys"),
    [
        (
            Reconstruction(
                inputs=list(IMAGES), labels=torch.tensor([4, 0, 4]), label_scores=torch.rand(10)
            ),
            {"inputs", "labels", "label_scores"},
        ),
        (Reconstruction(inputs=UTTERANCES), {"inputs.0", "inputs.1", "inputs.2"}),
        (Reconstruction(tokens=[torch.arange(3)] * 2, labels=None), {"tokens"}),
        (
            Reconstruction(sequences=[torch.arange(n) for n in range(1, 13)]),
            {f"sequences.{n}" for n in range(12)},
        ),
    ],
    ids=["images", "utterances", "tokens", "transcripts"],
)
def test_a_claim_is_read_as_it_was_written(claimed, keys, tmp_path):
    path = tmp_path / "reconstruction.safetensors"
    path.write_bytes(to_bytes(claimed))
    assert set(load_file(path)) == keys
    found = from_file(path)
    for name in ("inputs", "tokens", "sequences"):
        ours, theirs = getattr(found, name), getattr(claimed, name)
        if theirs is None:
            assert ours is None
            continue
        assert [one.dtype for one in ours] == [one.dtype for one in theirs]
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    for name in ("labels", "label_scores"):
        ours, theirs = getattr(found, name), getattr(claimed, name)
        assert (ours is None and theirs is None) or torch.equal(ours, theirs)


def test_claims_on_a_graph_and_in_shared_memory_are_written(tmp_path):
    learnt = torch.rand(2, 3, requires_grad=True)
    views = [learnt * 2, learnt.T.contiguous().T, learnt]
    (tmp_path / "claim").write_bytes(to_bytes(Reconstruction(inputs=views)))
    found = from_file(tmp_path / "claim").inputs
    assert all(torch.equal(*pair) for pair in zip(found, views, strict=True))


def test_labels_alone_need_no_file():
    assert to_bytes(Reconstruction(labels=torch.arange(3), label_set=frozenset({1}))) is None
    assert to_bytes(Reconstruction(inputs=[])) is None


def test_a_file_from_elsewhere_is_an_error_or_ignored(tmp_path):
    path = tmp_path / "claim"
    with pytest.raises(RunFolderError, match="cannot be read"):
        from_file(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(RunFolderError, match="cannot be read"):
        from_file(path)
    header = b'{"features":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")
    with pytest.raises(RunFolderError, match="cannot be read"):
        from_file(path)
    odd = ("inputs.-1", "inputs.x", f"inputs.{'9' * 5000}", "objective")
    save_file({name: torch.ones(1) for name in odd} | {"inputs": torch.ones(())}, path)
    assert from_file(path).inputs is None


def test_a_run_keeps_all_examples_of_a_picture_of_sixteen(tmp_path):
    run = scenario(
        training={"batch_size": 20, "rounds": 1},
        adversaries=[{"name": "dlg", "victims": 1, "iterations": 1, "restarts": 0}],
        threat={"grants": "white-box"},
    )
    simulate(run, tmp_path / "run")
    (found,) = {(row["artifact"], row["error"]) for row in rows(tmp_path / "run")}
    artifact = tmp_path / "run" / found[0]
    assert artifact.name == "reconstruction.png", "the column names what shows it"
    assert found[1] == ""
    claimed = from_file(artifact.with_name("reconstruction.safetensors"))
    assert len(claimed.inputs) == len(claimed.labels) == 20
    assert {one.shape for one in claimed.inputs} == {(1, 8, 8)}
    assert "artifacts are not shown" not in (tmp_path / "run" / "report.html").read_text()


# --- folders ---------------------------------------------------------------------------------


def test_a_points_artifacts_lie_in_a_folder_of_its_name(tmp_path):
    run = scenario(
        training={"rounds": 1},
        adversaries=[{"name": "dlg", "victims": 1, "iterations": 1, "restarts": 0}],
        threat={"grants": "white-box"},
        sweep={"training.batch_size": [1, 2]},
    )
    simulate(run, tmp_path / "run")
    names = {path.name for path in (tmp_path / "run" / "artifacts").iterdir()}
    assert names == {"training.batch_size=1", "training.batch_size=2"}
    for row in rows(tmp_path / "run"):
        assert row["artifact"].startswith(f"artifacts/{row['point']}/")
        assert (tmp_path / "run" / row["artifact"]).is_file()


@pytest.mark.parametrize(
    ("point", "place"),
    [
        ("", "artifacts"),
        ("seed=7,defenses.0.sigma=1e-05", "artifacts/seed=7,defenses.0.sigma=1e-05"),
        ("defenses=sign(scale=0.1)", "artifacts/defenses=sign_scale=0.1_-"),
        ("task.data=../../secret", "artifacts/task.data=.._.._secret-"),
        (".hidden=1", "artifacts/_hidden=1-"),
        ("name=" + "é" * 300, "artifacts/name=" + "_" * 95 + "-"),
    ],
)
def test_a_points_folder_is_readable_and_safe(point, place):
    found = artifacts_place(point)
    assert found == place if not place.endswith("-") else found.startswith(place)
    assert found.count("/") == bool(point)
    assert len(found) < 130


def test_points_whose_names_differ_in_what_is_replaced_have_folders_of_their_own():
    assert artifacts_place("task.data=a/b") != artifacts_place("task.data=a:b")
    assert artifacts_place("task.data=a/b") != artifacts_place("task.data=a_b")
