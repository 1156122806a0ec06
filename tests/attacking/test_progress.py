"""How far a long attack is, told while it runs; nothing that it can reach leads to who listens."""

import re
import time
from dataclasses import replace

import pytest
from rich.console import Console
from support.tiny import rows, scenario
from support.tiny_figures import toml

from fedsim import testing
from fedsim.attacking import progress as told
from fedsim.attacking.progress import (
    AttackProgress,
    Estimate,
    RunningAttacks,
    about,
    progress,
    watched,
)
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


def test_progress_has_the_number_of_iterations_that_an_attack_announced():
    job = testing.job(budget=30)
    for step in job.steps(40):
        job.progress(step + 1, 1.0)
        if step == 9:
            break
    assert str(progress("dlg", [job])) == "dlg: iteration 10 of 30, at 1"
    assert AttackProgress("dlg", 1, 5, 0.5).iterations == "5"
    assert AttackProgress("dlg", 1, 5, 0.5, of=4).iterations == "5"  # more than was announced


def test_a_board_holds_what_each_call_said_last(ray_session):
    from fedsim.engine.ray.board import Board

    board, other = Board(), Board()
    Board.write(board.name, 1, AttackProgress("dlg", 1, 5, 0.5))
    Board.write(board.name, 1, AttackProgress("dlg", 1, 6, 0.25))
    Board.write(other.name, 1, AttackProgress("tag", 2, 7, 0.125, 9))
    assert board.read(1) == AttackProgress("dlg", 1, 6, 0.25)
    assert other.read(1) == AttackProgress("tag", 2, 7, 0.125, 9)
    assert board.read(2) is None
    board.forget(1)
    assert board.read(1) is None


# --- estimates --------------------------------------------------------------------------------


def test_the_time_left_is_that_of_the_attacks_that_have_ended():
    estimate = Estimate()
    assert estimate.left(2) is None
    estimate.queue({"dlg": 5, "llg": 3})
    assert estimate.left(2) is None
    estimate.end("dlg", 10.0)
    estimate.end("dlg", 20.0)
    assert estimate.left(2) is None  # no attack of llg has ended
    estimate.end("llg", 1.0)
    assert estimate.left(1) == 3 * 15 + 2 * 1
    assert estimate.left(4) == (3 * 15 + 2 * 1) / 4
    estimate.end("llg", 1.0)
    estimate.end("llg", 1.0)
    estimate.end("dlg", 15.0)
    estimate.end("dlg", 15.0)
    assert estimate.left(4) == 15  # one attack is no faster on four workers
    estimate.end("dlg", 15.0)
    assert estimate.left(4) is None


def test_what_running_attacks_have_taken_is_over():
    estimate = Estimate()
    estimate.queue({"dlg": 4})
    estimate.end("dlg", 30.0)
    pair = RunningAttacks("dlg", 1, ("0", "1"), since=100.0)
    assert estimate.left(1, [pair], now=120.0) == 90 - 20
    assert estimate.left(1, [pair], now=900.0) == 90 - 60  # slower than the mean: its share at most


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "5 s"), (12, "10 s"), (54, "55 s"), (56, "1 min"), (185, "3 min"), (7000, "2 h")],
)
def test_an_estimate_is_no_more_exact_than_it_is(seconds, text):
    assert about(seconds) == f"about {text} left"


# --- engines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "engine", [{"name": "inline"}, {"name": "ray", "workers": 2, "attack_workers": 1}]
)
@pytest.mark.usefixtures("unreported")
def test_every_engine_tells_how_far_its_attacks_are(tmp_path, engine, often, ray_session):
    heard, rows_shown, last = [], [], []

    def observe(event, **fields):
        if event == "progress":
            heard.append(fields["progress"])
        if event == "running":
            rows_shown.extend(fields["running"])
            last[:] = fields["running"]

    run = scenario(
        adversaries=[LONG],
        engine=engine,
        task={"model": "lenet-sigmoid"},
        training={"rounds": 1, "clients": 2, "clients_per_round": 2},
        threat={"grants": "white-box"},
    )
    simulate(run, tmp_path / "run", observer=observe)
    assert all(one.adversary == "dlg" and 0 < one.iteration <= one.of == 40 for one in heard)
    assert rows_shown
    assert all((one.adversary, one.round, one.node) == ("dlg", 1, "") for one in rows_shown)
    assert {client for one in rows_shown for client in one.clients} == {"0", "1"}
    assert not last  # in the end nothing runs
    if engine["name"] == "inline":
        assert len({one.iteration for one in heard}) > 1
    took = {float(row["seconds"]) * 2 for row in rows(tmp_path / "run")}  # both in one call
    assert heard or max(took) < 3  # workers look once a second, and are asked twice
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert '"progress"' not in log
    assert '"running"' not in log


# --- the terminal -----------------------------------------------------------------------------


def shown(*events: tuple[str, dict[str, object]]) -> str:
    console = Console(force_terminal=True, width=120, record=True)
    with Display(console) as display:
        for event, fields in events:
            display(event, **fields)
    return console.export_text()


def lamp(**changes) -> RunningAttacks:
    since = time.monotonic() - 42
    heard = AttackProgress("lamp cos", 2, 812, 0.0312, 2000)
    return replace(RunningAttacks("lamp cos", 3, ("7", "12"), since, progress=heard), **changes)


def test_a_terminal_shows_what_each_busy_worker_does():
    queued = ("attacks", {"round": 3, "queued": 8, "pending": 8, "labels": {"lamp cos": 8}})
    dlg = RunningAttacks("dlg", 4, tuple(map(str, range(9))), time.monotonic())
    text = shown(queued, ("running", {"running": (lamp(), dlg), "workers": 2}))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "adversary round client iteration objective seconds" in lines
    assert "lamp cos 3 7, 12 812 of 2000 0.0312 42" in lines
    assert "dlg 4 0, 1, 2, 3, 4, 5, ... (9) 0" in lines
    assert "node" not in text
    assert "left" not in text  # no attack has ended


def test_a_terminal_shows_the_nodes_of_a_cluster_the_queue_and_the_time_left():
    many = tuple(lamp(node=f"10.0.0.{number}", clients=("1",)) for number in range(20))
    text = shown(
        ("attacks", {"round": 3, "queued": 31, "pending": 31, "labels": {"lamp cos": 31}}),
        ("findings", {"findings": [replace(row(0.1), label="lamp cos", seconds=180.0)]}),
        ("running", {"running": many, "workers": 20}),
    )
    assert re.search(r"10\.0\.0\.3 +lamp cos", text)
    assert "10.0.0.17" not in text
    assert "and 4 more" in text
    assert "30 in flight, 10 of them queued; about 4 min left" in text


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
    text = console.export_text()
    first, second = re.findall(r"mean squared error ([\d.]+) \(chance 0.5\)", text)
    assert (float(first), float(second)) == (0.3, 0.2)
    assert "x" * 300 in text


@pytest.mark.usefixtures("unreported")
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
