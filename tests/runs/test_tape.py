"""What is recorded is what was intercepted, and attacks from a tape are attacks live."""

import dataclasses

import pytest
import torch
from support.tiny import rows, same, scenario

from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.records import Interception, Update
from fedsim.runs.tape import Tape
from fedsim.scenario.built import build


def interception(round=1, clients=(4,), **changes):
    rng = torch.Generator().manual_seed(round)
    before = {"w": torch.rand(3, 2, generator=rng), "mean": torch.ones(2), "scalar": torch.ones(())}
    values = {
        "tensors": {
            "w": torch.rand(3, 2, generator=rng).T.contiguous().T,
            "scalar": torch.ones(()),
        },
        "kind": "weights",
        "buffers": {"mean": torch.zeros(2)},
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "steps": 3,
        "num_examples": 12,
        "reduction": "token",
        "optimizer": "adam",
    }
    return Interception(round, clients, before, Update(**{**values, **changes}))


def equal(one: Interception, other: Interception) -> bool:
    scalars = [f.name for f in dataclasses.fields(Update) if f.name not in ("tensors", "buffers")]
    return (
        (one.round, one.clients) == (other.round, other.clients)
        and same(dict(sorted(one.before.items())), dict(sorted(other.before.items())))
        and same(
            dict(sorted(one.update.tensors.items())), dict(sorted(other.update.tensors.items()))
        )
        and same(one.update.buffers, other.update.buffers)
        and all(getattr(one.update, name) == getattr(other.update, name) for name in scalars)
    )


@pytest.mark.parametrize(
    "changes",
    [{}, {"lr": None}, {"kind": "gradient", "buffers": {}}, {"kind": "delta"}],
    ids=str,
)
def test_what_was_recorded_is_read_back(changes, tmp_path):
    tape, one = Tape(tmp_path), interception(**changes)
    tape.record(one)
    (again,) = tape
    assert equal(again, one)


def test_a_tape_is_read_by_round_and_client_with_one_copy_of_the_arrays(tmp_path):
    tape = Tape(tmp_path)
    for round, clients in [(10, (2,)), (2, (11,)), (2, (3,)), (2, (0, 7))]:
        tape.record(interception(round, clients))
    assert [(one.round, one.clients) for one in tape] == [
        (2, (0, 7)),
        (2, (3,)),
        (2, (11,)),
        (10, (2,)),
    ]
    assert len(list(tmp_path.rglob("before.safetensors"))) == 2
    assert not list(tmp_path.rglob("*.part"))


def test_an_empty_tape_has_nothing(tmp_path):
    assert list(Tape(tmp_path / "none")) == []


def test_a_broken_tape_is_named(tmp_path):
    tape = Tape(tmp_path)
    tape.record(interception())
    (path,) = tmp_path.rglob("c*.safetensors")
    path.write_bytes(b"not a tensor")
    with pytest.raises(RunFolderError, match=r"c0004\.safetensors cannot be read"):
        list(tape)


def test_a_file_of_someone_elses_is_named(tmp_path):
    from safetensors.torch import save_file

    tape = Tape(tmp_path)
    tape.record(interception())
    save_file({"w": torch.ones(1)}, next(tmp_path.rglob("r*")) / "c0005.safetensors")
    with pytest.raises(RunFolderError, match=r"c0005\.safetensors"):
        list(tape)


@pytest.mark.parametrize(
    ("algorithm", "model"), [("fedsgd", "cnn"), ("fedavg", "cnn"), ("fedavg", "resnet20")]
)
def test_attacks_from_the_tape_find_what_they_found_live(algorithm, model, tmp_path):
    run = scenario(
        task={"model": model},
        training={
            "algorithm": algorithm,
            "clients_per_round": 2,
            "local_steps": 1 if algorithm == "fedsgd" else 2,
        },
        threat={"grants": "auxiliary", "record": True},
        adversaries=[{"name": "llg"}, {"name": "dlg", "budget": 1, "victims": 2}],
    )
    simulate(run, tmp_path)
    live = rows(tmp_path)
    runner = AttackRunner(build(run))
    taped = []
    for one in Tape(tmp_path / "tape"):
        for index in range(2):
            taped += runner.perform(Attack(one, index, 1.0)).findings

    def comparable(row):
        """Live, DLG attacks all victims of a round at once, and sums are rounded otherwise."""
        row = {k: "" if v is None else str(v) for k, v in row.items() if k != "seconds"}
        if row["label"] == "dlg" and row["value"]:
            row["value"] = f"{float(row['value']):.3g}"
        return tuple(row.items())

    again = {comparable(dataclasses.asdict(row)) for row in taped}
    assert again == {comparable(row) for row in live}


def test_nothing_is_recorded_unless_asked(tmp_path):
    simulate(scenario(), tmp_path)
    assert not (tmp_path / "tape").exists()
