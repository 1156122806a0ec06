"""How far a long attack is, told while it runs; nothing that it can reach leads to who listens."""

import re
import time

import pytest
from rich.console import Console
from support.tiny import rows, scenario
from support.tiny_figures import toml

from fedsim import testing
from fedsim.attacking import progress as told
from fedsim.attacking.progress import AttackProgress, Board, progress, watched
from fedsim.cli.display import Display
from fedsim.engine.simulate import simulate
from fedsim.records import Finding
from fedsim.reproduce import choose, driver

LONG = {"name": "dlg", "iterations": 40, "restarts": 0, "tolerance": 0.0}
"""Some seconds: workers look once a second."""


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(told, "EVERY", 0.02)


def test_jobs_of_one_call_are_told_of_together():
    jobs = [testing.job(seed=seed) for seed in range(3)]
    assert progress("lamp", jobs) is None
    jobs[0].progress(7, 0.5)
    jobs[1].progress(9, 0.1)
    now = progress("lamp", jobs)
    assert now == AttackProgress("lamp", 3, 9, 0.3)
    assert str(now) == "lamp on 3: iteration 9, at 0.3"


def test_what_is_new_is_told_once_and_only_meanwhile(often):
    job, heard = testing.job(), []
    with watched(lambda: progress("dlg", [job]), heard.append):
        job.progress(1, 2.0)
        time.sleep(0.2)
        job.progress(2, 1.0)
        time.sleep(0.2)
    job.progress(3, 0.5)
    time.sleep(0.1)
    assert heard == [AttackProgress("dlg", 1, 1, 2.0), AttackProgress("dlg", 1, 2, 1.0)]


def test_a_board_holds_what_each_worker_said_last():
    board = Board()
    Board.write(board.folder, 0, AttackProgress("dlg", 1, 5, 0.5))
    Board.write(board.folder, 1, AttackProgress("tag", 2, 6, 0.25))
    assert [one.adversary for one in board.read()] == ["dlg", "tag"]
    assert board.read() == []
    Board.write(board.folder, 1, AttackProgress("tag", 2, 7, 0.125))
    assert board.read() == [AttackProgress("tag", 2, 7, 0.125)]
    board.close()
    Board.write(board.folder, 1, AttackProgress("tag", 2, 8, 0.1))  # a worker that ends late
    assert board.read() == []


@pytest.mark.parametrize("engine", [{"name": "inline"}, {"name": "ray", "workers": 2}])
def test_every_engine_tells_how_far_its_attacks_are(tmp_path, engine, often, ray_session):
    heard = []

    def observe(event, **fields):
        if event == "progress":
            heard.append(fields["progress"])

    run = scenario(
        adversaries=[LONG],
        engine=engine,
        task={"model": "lenet-sigmoid"},
        training={"rounds": 1, "clients": 2, "clients_per_round": 2},
        threat={"grants": "white-box"},
    )
    simulate(run, tmp_path / "run", observer=observe)
    assert all(one.adversary == "dlg" and 0 < one.iteration <= 40 for one in heard)
    if engine["name"] == "inline":
        assert len({one.iteration for one in heard}) > 1
    took = {float(row["seconds"]) * 2 for row in rows(tmp_path / "run")}  # both in one call
    assert heard or max(took) < 3  # workers look once a second, and are asked twice
    assert '"progress"' not in (tmp_path / "run" / "log.jsonl").read_text()


def test_a_terminal_shows_it_beside_the_attacks_in_flight():
    console = Console(force_terminal=True, width=120, record=True)
    with Display(console) as display:
        display("attacks", round=1, queued=8, pending=8)
        display("progress", progress=AttackProgress("lamp cos", 8, 812, 0.0312))
    assert "8 in flight; lamp cos on 8: iteration 812, at 0.0312" in console.export_text()


def row(value, status="ok", error=""):
    return Finding(
        scenario="s", point="", seed=0, round=1, client="0", victim="r0001-c0000",
        adversary="dlg", metric="mse", value=value, baseline=0.5, baseline_prior=None,
        status=status, error=error, attempt=1, seconds=1.0, iterations=1, granted="",
        label="dlg", batch_size=1, local_steps=1, inclusion=1.0, artifact="",
    )  # fmt: skip


def test_leakage_is_of_one_point_and_a_broken_attack_counts_as_a_guess():
    console = Console(width=400, record=True)
    with Display(console) as display:
        display("point", point="a", rounds=1)
        display("findings", findings=[row(0.1)], pending=1)
        display("findings", findings=[row(None, "failed", "wrong: " + "x" * 300)], pending=0)
        display("round", round=1, of=1)
        display("point", point="b", rounds=1)
        display("findings", findings=[row(0.2)], pending=0)
        display("round", round=1, of=1)
    shown = console.export_text()
    first, second = re.findall(r"mean squared error ([\d.]+) \(chance 0.5\)", shown)
    assert (float(first), float(second)) == (0.3, 0.2)
    assert "x" * 300 in shown


def test_a_reproduction_counts_the_attacks_of_a_point(tmp_path):
    notes = []
    (figure,) = choose(toml(tmp_path))
    (part,) = figure.parts
    driver.run_figure(
        figure,
        part,
        tmp_path / "out",
        "smoke",
        overrides=["paper.repetitions=1"],
        progress=lambda name, done, of, note: notes.append((done, of, note)),
    )
    assert notes[0] == (0, 2, "")
    assert (0, 2, "0 of 2 attacks") in notes
    assert (1, 2, "2 of 2 attacks") in notes
    assert notes[-1] == (2, 2, "")
