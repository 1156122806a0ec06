"""A run that keeps nothing of its updates still knows whom it has to attack when it goes on."""

import pytest
from support.tiny import rows, scenario, timeless

from adversaries import LLG
from fedsim.engine.attack import attack
from fedsim.engine.simulate import simulate
from fedsim.federation import checkpoint
from fedsim.runs.attack_log import AttackLog

pytestmark = pytest.mark.usefixtures("unreported")


@pytest.fixture(autouse=True)
def each_round_is_kept(monkeypatch):
    monkeypatch.setattr(checkpoint, "EVERY_S", 0)


def interrupted(run, folder):
    def stop(event, **fields):
        if event == "training" and fields["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, folder, observer=stop)


def changed(**changes):
    return scenario(training={"rounds": 4}, record={"keep": "nothing"}, **changes)


def test_a_torn_row_is_made_again(tmp_path):
    interrupted(changed(), tmp_path / "run")
    table = tmp_path / "run/findings.csv"
    table.write_bytes(table.read_bytes()[:-20])
    simulate(changed(), tmp_path / "run", resume=True)
    simulate(changed(), tmp_path / "whole")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "whole")


def test_more_victims_than_before_are_attacked_in_every_round(tmp_path):
    interrupted(changed(threat={"victims": 1}), tmp_path / "run")
    simulate(changed(threat={"victims": "all"}), tmp_path / "run", resume=True)
    found = {(row["round"], row["victim"]) for row in rows(tmp_path / "run")}
    assert len(found) == 16


def test_nothing_is_left_of_the_recording(tmp_path):
    simulate(changed(), tmp_path / "run")
    assert not (tmp_path / "run/tape").exists()


def test_a_retry_that_is_killed_leaves_no_row_twice(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def fails(*_):
        raise RuntimeError("out of luck")

    def killed(*_):
        raise Killed

    run = scenario(training={"rounds": 1}, threat={"victims": 1}, record={"keep": "all"})
    with monkeypatch.context() as patched:
        patched.setattr(LLG, "reconstruct", fails)
        simulate(run, tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr(AttackLog, "end", killed)
        with pytest.raises(Killed):
            attack(tmp_path / "run", retry=True)
    attack(tmp_path / "run", retry=True)
    found = [(row["attempt"], row["status"], row["metric"]) for row in rows(tmp_path / "run")]
    assert len(found) == len({*found})
    assert {(attempt, status) for attempt, status, _ in found} == {("1", "failed"), ("2", "ok")}
