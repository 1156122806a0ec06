"""What is recorded is what was intercepted, and attacks on it are attacks live."""

import dataclasses
import os
import pickle
import subprocess
import sys
from collections import Counter

import pytest
import torch
from safetensors.torch import save_file
from support.tiny import rows, same, scenario

from fedsim.attacking.attack import Attack, AttackRunner
from fedsim.engine.simulate import simulate
from fedsim.errors import RunFolderError
from fedsim.records import Interception, Update
from fedsim.runs.recording import Recording
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")


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


def written(folder, one: Interception) -> Interception:
    """An interception of a round that is not closed."""
    recording = Recording(folder)
    stored = recording.write(one)
    recording.flush()
    return stored


def recorded(folder, *interceptions, kept=None) -> Recording:
    """A recording of one round, or of several."""
    recording = Recording(folder)
    for round in sorted({one.round for one in interceptions}):
        mine = [recording.write(one) for one in interceptions if one.round == round]
        recording.close(round, mine, {}, [one.victim for one in mine if kept in (None, one.victim)])
    return recording


@pytest.mark.parametrize(
    "changes",
    [{}, {"lr": None}, {"kind": "gradient", "buffers": {}}, {"kind": "delta"}],
    ids=str,
)
def test_what_was_recorded_is_read_back(changes, tmp_path):
    one = interception(**changes)
    assert equal(written(tmp_path / "open", one), one)
    recorded(tmp_path, one)
    (again,) = Recording(tmp_path)
    assert equal(again, one)
    assert equal(pickle.loads(pickle.dumps(again)), one)  # noqa: S301


FORKING = """
import multiprocessing, sys, torch
from pathlib import Path
from fedsim.records import Interception, Update
from fedsim.runs.recording import Recording

def record(folder):
    tensors = {"w": torch.ones(2)}
    recording = Recording(folder)
    recording.write(one := Interception(1, (0,), tensors, Update(tensors=tensors, kind="delta")))
    recording.close(1, [one], {}, [one.victim])

record(Path(sys.argv[1], "parent"))
folder = Path(sys.argv[1], "child")
child = multiprocessing.get_context("fork").Process(target=record, args=(folder,))
child.start()
child.join(60)
child.kill()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_records_as_well(tmp_path):
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    subprocess.run(command, check=True, timeout=120)
    for process in ("parent", "child"):
        (again,) = Recording(tmp_path / process)
        assert again.update.tensors["w"].tolist() == [1.0, 1.0]


def test_the_dtype_is_the_one_that_was_sent(tmp_path):
    tensors = {"w": torch.ones(2, dtype=torch.bfloat16), "v": torch.ones(2, dtype=torch.float64)}
    one = Interception(1, (0,), tensors, Update(tensors=tensors, kind="gradient"))
    stored = written(tmp_path, one)
    assert {name: value.dtype for name, value in stored.update.tensors.items()} == {
        "w": torch.bfloat16,
        "v": torch.float64,
    }


def test_a_recording_is_read_by_round_and_client_with_one_copy_of_the_arrays(tmp_path):
    before = interception().before
    each = [(10, (2,)), (2, (11,)), (2, (3,)), (2, (0, 7))]
    ones = [dataclasses.replace(interception(*one), before=before) for one in each]
    recorded(tmp_path, *ones)
    assert [(one.round, one.clients) for one in Recording(tmp_path)] == [
        (2, (0, 7)),
        (2, (3,)),
        (2, (11,)),
        (10, (2,)),
    ]
    assert len(list(tmp_path.rglob("before.safetensors"))) == 2
    assert not list(tmp_path.rglob("*.part"))


def test_clients_that_were_sent_different_models_are_recorded_with_their_own(tmp_path):
    one, other = interception(1, (1,)), interception(1, (2,))
    other.before["w"][:] = 7.0
    recorded(tmp_path, one, other)
    assert [equal(*pair) for pair in zip(Recording(tmp_path), (one, other), strict=True)] == [
        True,
        True,
    ]


def test_an_empty_recording_has_nothing(tmp_path):
    assert list(Recording(tmp_path / "none")) == []


def test_a_later_line_of_a_round_counts_and_a_torn_one_does_not(tmp_path):
    recorded(tmp_path, interception(1, (1,)), interception(2, (5,)))
    recorded(tmp_path, interception(1, (2,)))
    with (tmp_path / "index.jsonl").open("a") as file:
        file.write('{"round":2,"upd')
    assert [(one.round, one.clients) for one in Recording(tmp_path)] == [(1, (2,)), (2, (5,))]


def test_what_does_not_stay_is_removed_and_known(tmp_path):
    recording = recorded(tmp_path, interception(1, (1,)), interception(1, (2,)), kept="r0001-c0002")
    recording.prune(1)
    again = Recording(tmp_path)
    assert [one.clients for one in again] == [(2,)]
    assert [one.clients for one in again.rounds[1].updates] == [(1,), (2,)]
    assert sum(again.kept.values()) == sum(
        p.stat().st_size for p in tmp_path.rglob("*.safetensors")
    )


def test_history_says_whether_it_is_whole(tmp_path):
    ones = [interception(round, (4,)) for round in (1, 2, 3)]
    recording = recorded(tmp_path, *ones)
    found, whole = recording.history(4, 3)
    assert ([one.round for one in found], whole) == ([1, 2], True)
    recording.keep({1: ["r0001-c0004"]})
    for round in (1, 2, 3):
        recording.prune(round)
    found, whole = Recording(tmp_path).history(4, 3)
    assert ([one.round for one in found], whole) == ([1], False)


@pytest.mark.parametrize("content", [b"not a tensor", None], ids=["broken", "missing"])
def test_a_broken_file_is_named_when_it_is_used(content, tmp_path):
    recorded(tmp_path, interception())
    (path,) = tmp_path.rglob("c*.safetensors")
    path.unlink()
    if content:
        path.write_bytes(content)
    (one,) = Recording(tmp_path)
    with pytest.raises(RunFolderError, match=r"c0004\.safetensors cannot be read"):
        dict(one.update.tensors)


@pytest.mark.parametrize(
    "line", ["no json", '{"round": "x"}', '{"round":1,"updates":[{"clients":"many"}]}'], ids=str
)
def test_a_broken_index_is_named_with_its_line(line, tmp_path):
    recorded(tmp_path, interception())
    with (tmp_path / "index.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(RunFolderError, match=r"index\.jsonl cannot be read: line 2"):
        list(Recording(tmp_path))


def test_an_index_names_files_of_its_own_folder_alone(tmp_path):
    recorded(tmp_path / "tape", interception())
    path = tmp_path / "tape" / "index.jsonl"
    path.write_text(path.read_text().replace("r0001/c0004", "../secret/c0004"))
    with pytest.raises(RunFolderError, match="line 1"):
        list(Recording(tmp_path / "tape"))


def test_a_recording_of_schema_1_is_read_without_an_index(tmp_path):
    one = interception()
    recorded(tmp_path, one)
    (tmp_path / "index.jsonl").unlink()
    save_file({"w": torch.ones(1)}, tmp_path / "r0001" / "c0005.safetensors")
    again = Recording(tmp_path)
    assert [equal(each, one) for each in again] == [True]
    assert "c0005.safetensors cannot be read" in again.rounds[1].refused[5]


@pytest.mark.parametrize(
    ("algorithm", "model", "rounds"),
    [("fedsgd", "cnn", 2), ("fedavg", "cnn", 2), ("fedavg", "resnet20", 1)],
)
def test_attacks_on_a_recording_find_what_they_found_live(algorithm, model, rounds, tmp_path):
    training = {"algorithm": algorithm, "rounds": rounds, "clients_per_round": 2}
    run = scenario(
        task={"model": model},
        training={**training, "local_steps": 1 if algorithm == "fedsgd" else 2},
        threat={"grants": "auxiliary", "record": True},
        adversaries=[{"name": "llg"}, {"name": "dlg", "budget": 1, "victims": 2}],
    )
    simulate(run, tmp_path)
    live = rows(tmp_path)
    runner = AttackRunner(build(run))
    again = []
    for one in Recording(tmp_path / "tape"):
        for index in range(2):
            again += runner.perform(Attack(one, index, 1.0)).findings

    def comparable(row):
        """Live, DLG attacks all victims of a round at once, and sums are rounded otherwise."""
        row = {k: "" if v is None else str(v) for k, v in row.items() if k != "seconds"}
        if row["label"] == "dlg" and row["value"]:
            row["value"] = f"{float(row['value']):.3g}"
        return tuple(row.items())

    assert {comparable(dataclasses.asdict(row)) for row in again} == {
        comparable(row) for row in live
    }


@pytest.mark.parametrize(
    ("keep", "kept"),
    [("nothing", None), ("attacked", {"r0001": 2, "r0002": 2}), ("all", {"r0001": 4, "r0002": 4})],
)
def test_as_much_is_kept_as_the_scenario_asks(keep, kept, tmp_path):
    simulate(scenario(threat={"victims": 2}, record={"keep": keep}), tmp_path)
    if kept is None:
        assert not (tmp_path / "tape").exists()
        return
    files = Counter(path.parent.name for path in (tmp_path / "tape").rglob("c*.safetensors"))
    assert files == kept
    attacked = {row["victim"] for row in rows(tmp_path)}
    assert attacked <= {one.victim for one in Recording(tmp_path / "tape")}


def test_what_does_not_fit_is_left_out_and_said_so(tmp_path):
    said = []
    run = scenario(record={"keep": "all", "max_bytes": 300_000})
    simulate(run, tmp_path, observer=lambda event, **fields: said.append((event, fields)))
    size = sum(path.stat().st_size for path in (tmp_path / "tape").rglob("*.safetensors"))
    assert 0 < size <= 300_000
    (text,) = (fields["text"] for event, fields in said if event == "caution")
    assert "max_bytes = 300000" in text
    assert "updates of rounds" in text
    (told,) = (fields for event, fields in said if event == "recorded")
    assert told["bytes"] == size
    assert len(rows(tmp_path)) > 0


def test_the_history_of_a_victim_stays_and_nothing_else(tmp_path):
    run = scenario(
        training={"rounds": 3},
        threat={
            "grants": ["HISTORY", "HEAD_GRADIENT"],
            "follow": [5],
            "victims": [5],
            "rounds": [2],
        },
    )
    simulate(run, tmp_path)
    assert [one.victim for one in Recording(tmp_path / "tape")] == ["r0001-c0005", "r0002-c0005"]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX")
def test_a_disk_that_fills_up_costs_its_round_and_no_finding(tmp_path):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def observe(event, **fields):
        full = event == "round" and fields["round"] == 1
        if full or event == "ended":  # files may hold 20 kB, and an update has 60
            soft = 20_000 if full else before[0]
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, before[1]))

    run = scenario(training={"rounds": 3}, record={"keep": "all"})
    try:
        with pytest.raises(RunFolderError, match=r"round 2 are lost; rounds up to 1 are recorded"):
            simulate(run, tmp_path / "run", observer=observe)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert {row["round"] for row in rows(tmp_path / "run")} == {"1"}
    assert {one.round for one in Recording(tmp_path / "run" / "tape")} == {1}
    simulate(run, tmp_path / "run", resume=True)
    assert {one.round for one in Recording(tmp_path / "run" / "tape")} == {1, 2, 3}


def test_the_limit_of_bytes_is_that_of_the_run_and_holds_over_a_resume(tmp_path):
    run = scenario(
        record={"keep": "all", "max_bytes": 700_000},
        sweep={"training.lr": [0.1, 0.2, 0.3]},
    )
    simulate(run, tmp_path / "run")

    def size():
        return sum(
            path.stat().st_size for path in (tmp_path / "run").rglob("tape/**/*.safetensors")
        )

    assert 350_000 < size() <= 700_000
    before = size()
    simulate(run, tmp_path / "run", resume=True)
    assert size() == before


def test_the_files_of_an_unfinished_round_are_no_round(tmp_path):
    written(tmp_path, interception())
    assert list(Recording(tmp_path)) == []
