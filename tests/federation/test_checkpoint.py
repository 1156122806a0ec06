"""Checkpoints: short rounds share one, and a killed run makes again what none has."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import save
from support.tiny import rows, scenario, timeless

from fedsim.engine.simulate import simulate
from fedsim.federation import checkpoint
from fedsim.federation.checkpoint import Checkpoint, Checkpoints
from fedsim.runs.ledger import Ledger

pytestmark = pytest.mark.usefixtures("unreported")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Checkpoints of a run folder, the time, the last round that is settled, and the ledger."""
    clock, settled = [100.0], [0]
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ledger = Ledger.create(tmp_path / "run", scenario())
    found = Checkpoints(ledger, "checkpoint", lambda number: number <= settled[0])
    return found, clock, settled, ledger


def of(round):
    return Checkpoint(round, True, {"weight": torch.full((2,), float(round))}, {})


def written(ledger):
    """The round of the checkpoint in the folder, 0 if there is none."""
    found = Checkpoint.read(ledger, "checkpoint")
    return found.round if found else 0


def test_short_rounds_share_a_checkpoint(kept):
    found, clock, settled, ledger = kept
    settled[0] = 9
    found.add(of(1))
    assert written(ledger) == 1, "the first one does not wait"
    found.add(of(2))
    found.add(of(3))
    assert written(ledger) == 1
    clock[0] += checkpoint.EVERY_S
    found.add(of(4))
    assert written(ledger) == 4
    found.add(of(5))
    found.write()
    assert written(ledger) == 5, "the last one does not wait"


def test_writing_takes_a_small_share_of_the_time(kept, monkeypatch):
    """A checkpoint that takes three seconds to write is written again after nine times as long."""
    found, clock, settled, ledger = kept
    settled[0], write = 9, Checkpoint.write

    def slow(self, *where):
        clock[0] += 3.0
        write(self, *where)

    monkeypatch.setattr(Checkpoint, "write", slow)
    found.add(of(1))
    clock[0] += 26.0
    found.add(of(2))
    assert written(ledger) == 1
    clock[0] += 1.5
    found.add(of(3))
    assert written(ledger) == 3


def test_a_round_whose_attacks_have_not_ended_has_no_checkpoint_yet(kept):
    found, clock, settled, ledger = kept
    found.add(of(1))
    found.add(of(2))
    assert written(ledger) == 0
    settled[0] = 1
    clock[0] += checkpoint.EVERY_S
    found.add(of(3))
    assert written(ledger) == 1
    settled[0] = 2
    found.add(of(4))
    settled[0] = 3
    found.add(of(5))
    found.write()
    assert written(ledger) == 3
    found.write()
    assert written(ledger) == 3


def test_utility_is_on_disk_before_its_checkpoint(kept, monkeypatch):
    found, _, settled, ledger = kept
    settled[0], order = 1, []
    monkeypatch.setattr(os, "fsync", lambda file: order.append(os.fstat(file).st_ino))
    ledger.utility(1, {"accuracy": 0.5}, "")
    assert order == []
    found.add(of(1))
    written = [ledger.folder / "utility.csv", ledger.folder / "checkpoint" / checkpoint.FILE]
    assert order == [path.stat().st_ino for path in written]


KILLED = """
import os
from fedsim.engine.simulate import simulate
from fedsim.federation import checkpoint
from fedsim.scenario import Scenario

def observer(event, **fields):
    if event == "round" and fields["round"] == 3:
        os._exit(9)

checkpoint.EVERY_S = 1e9
simulate(Scenario.load("run.toml"), "killed", observer=observer)
"""


def test_a_killed_run_makes_again_the_rounds_after_its_checkpoint(tmp_path):
    run = scenario(training={"rounds": 4})
    simulate(run, tmp_path / "whole")
    (tmp_path / "run.toml").write_text(run.to_toml(), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, check=False)
    assert done.returncode == 9
    assert {row["round"] for row in rows(tmp_path / "killed")} == {"1", "2", "3"}
    assert Checkpoint.read(Ledger(tmp_path / "killed"), "checkpoint").round == 1
    simulate(run, tmp_path / "killed", resume=True)
    assert timeless(tmp_path / "killed") == timeless(tmp_path / "whole")
    utility = [(tmp_path / name / "utility.csv").read_text() for name in ("killed", "whole")]
    assert utility[0] == utility[1]


def test_few_checkpoints_wait_for_attacks(kept):
    found, _, settled, ledger = kept
    for number in range(1, 41):
        found.add(of(number))
    assert len(found._waiting) == 8
    settled[0] = 1
    found.write()
    assert written(ledger) == 1
    settled[0] = 40
    found.write()
    assert written(ledger) == 40


def test_names_of_arrays_may_have_a_slash_or_be_those_of_other_parts(tmp_path):
    ledger = Ledger.create(tmp_path / "run", scenario())
    arrays = {"body/0.weight": torch.ones(2), "strategy": torch.zeros(1), "client": torch.ones(1)}
    made = checkpoint.capture(1, arrays, FedAvg(), {}, {})
    made.write(ledger, "checkpoint")
    found = Checkpoint.read(ledger, "checkpoint")
    assert {name: one.tolist() for name, one in found.arrays.items()} == {
        name: one.tolist() for name, one in arrays.items()
    }
    checkpoint.restore(found, FedAvg(), lambda client: pytest.fail("no client has a state"))


@pytest.mark.parametrize(
    "meta", [None, {"round": "1", "complete": "True", "taken_part": "[]"}, {"round": "1"}]
)
def test_a_file_that_is_no_checkpoint_counts_as_none(meta, tmp_path):
    ledger = Ledger.create(tmp_path / "run", scenario())
    ledger.artifact(f"checkpoint/{checkpoint.FILE}", save({"weight": torch.ones(1)}, meta))
    assert Checkpoint.read(ledger, "checkpoint") is None
