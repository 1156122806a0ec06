"""Inline, Ray and Flower's own engine find the same; dead workers, time limits and Ctrl-C cost no
row that was there."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny import faulty, rows, same, scenario, timeless

from fedsim.engine import engine_name, workers
from fedsim.errors import ClientError
from fedsim.simulation import simulate

pytestmark = [
    pytest.mark.usefixtures("rogues_everywhere"),
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and SIGALRM are POSIX"),
]

FINAL = "checkpoint/global.safetensors"
RAY = {"name": "ray", "workers": 2}


@pytest.fixture(autouse=True, scope="module")
def _ray(rogues_everywhere):
    """One Ray session for the module; engines keep whatever session there is."""
    yield
    import ray

    ray.shutdown()


def statuses(folder: Path) -> dict[tuple[int, str, str], set[str]]:
    """Statuses by (round, client, adversary label)."""
    found = defaultdict(set)
    for row in rows(folder):
        found[int(row["round"]), row["client"], row["label"]].add(row["status"])
    return dict(found)


# --- one seed, one outcome --------------------------------------------------------------------


def rich(algorithm: str, engine: dict[str, object]):
    """A scenario with sampling, client state, noise, failures and attacks that draw numbers."""
    return scenario(
        training={
            "algorithm": algorithm,
            "rounds": 3,
            "local_steps": 1 if algorithm == "fedsgd" else 3,
            "evaluate_clients": 2,
        },
        task={"test_examples": 40},
        threat={"grants": "full", "follow": [1], "victims": 3},
        defenses=[{"name": "gaussian-noise", "sigma": 1e-4}, {"name": "counting"}],
        adversaries=[
            {"name": "llg"},
            {"name": "dlg", "budget": 2, "rounds": [2]},
            {"name": "vandal", "rounds": [1]},
            {"name": "rubbish", "how": "raise", "victims": "all"},
        ],
        engine=engine,
    )


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """Run folders of the inline engine, by algorithm."""
    folders = {}
    for algorithm in ("fedsgd", "fedavg"):
        folders[algorithm] = tmp_path_factory.mktemp(algorithm) / "run"
        simulate(rich(algorithm, {"workers": 1}), folders[algorithm])
    return folders


@pytest.mark.parametrize(
    ("engine", "algorithm"),
    [
        (RAY, "fedsgd"),
        (RAY, "fedavg"),
        ({"name": "flower", "workers": 2}, "fedavg"),
    ],
    ids=["ray-fedsgd", "ray-fedavg", "flower-fedavg"],
)
def test_every_engine_finds_the_same_and_trains_the_same(engine, algorithm, inline, tmp_path):
    simulate(rich(algorithm, engine), tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(inline[algorithm])
    assert rows(tmp_path / "run", "utility.csv") == rows(inline[algorithm], "utility.csv")
    assert same(load_file(tmp_path / "run" / FINAL), load_file(inline[algorithm] / FINAL))
    pictures = {
        path.relative_to(folder): path.read_bytes()
        for folder in [inline[algorithm]]
        for path in folder.rglob("*.png")
    }
    assert pictures
    for path, content in pictures.items():
        assert (tmp_path / "run" / path).read_bytes() == content


def test_the_inline_engine_repeats_itself(inline, tmp_path):
    simulate(rich("fedavg", {"workers": 1}), tmp_path / "run")
    assert timeless(tmp_path / "run") == timeless(inline["fedavg"])
    assert same(load_file(tmp_path / "run" / FINAL), load_file(inline["fedavg"] / FINAL))


def test_the_engine_follows_from_the_number_of_workers():
    assert engine_name(scenario(engine={"workers": 1})) == "inline"
    assert engine_name(scenario(engine={"workers": 3})) == "ray"
    assert engine_name(scenario(engine={"workers": 1, "address": "auto"})) == "ray"
    assert engine_name(scenario(engine={"workers": 3, "name": "inline"})) == "inline"
    alone = scenario(engine={"workers": "auto"}, training={"clients_per_round": 1})
    assert workers(alone) == 1


# --- workers that die -------------------------------------------------------------------------


def test_an_adversary_that_kills_its_worker_costs_its_own_rows_only(tmp_path):
    run = scenario(
        training={"clients_per_round": 6},
        adversaries=[
            {"name": "llg"},
            {"name": "deadly", "victims": [1, 4], "rounds": [1]},
            {"name": "idlg"},
        ],
        engine=RAY,
    )
    simulate(run, tmp_path)
    found = statuses(tmp_path)
    places = [(round, str(client)) for round in (1, 2) for client in range(6)]
    expected = {(*place, label): {"ok"} for place in places for label in ("llg", "idlg")}
    expected |= {(1, client, "deadly"): {"failed"} for client in ("1", "4")}
    assert found == expected
    died = [row for row in rows(tmp_path) if row["label"] == "deadly"]
    assert all("worker died" in row["error"] and row["baseline"] for row in died)
    assert len(died) == 2 * 3  # each metric


def test_a_client_that_kills_its_worker_is_named_and_the_others_go_on(tmp_path):
    run = faulty("dies", training={"on_failure": "drop", "rounds": 3}, engine=RAY)
    simulate(run, tmp_path / "drop")
    found = statuses(tmp_path / "drop")
    assert len(found) == 3 * 6
    assert {place for place, how in found.items() if how != {"ok"}} == {(2, "2", "llg")}
    errors = {row["error"] for row in rows(tmp_path / "drop") if row["status"] == "failed"}
    assert all("worker died" in error for error in errors)

    with pytest.raises(ClientError, match=r"round 2: 1 of 6 clients failed\n  client 2: .*died"):
        simulate(faulty("dies", engine=RAY), tmp_path / "stop")
    assert len(statuses(tmp_path / "stop")) == 2 * 6
    assert (tmp_path / "stop" / "report.html").exists()


# --- time limits ------------------------------------------------------------------------------


def sleeping(how: str, engine: dict[str, object]):
    return scenario(
        training={"rounds": 1, "clients": 2, "clients_per_round": 2},
        adversaries=[
            {"name": "sleeper", "how": how, "timeout": 0.3, "victims": [0]},
            {"name": "llg"},
        ],
        engine=engine,
    )


@pytest.mark.parametrize("engine", [{"workers": 1}, RAY], ids=["inline", "ray"])
@pytest.mark.parametrize("how", ["reports", "deaf"])
def test_an_attack_over_its_limit_is_a_timeout(engine, how, tmp_path):
    simulate(sleeping(how, engine), tmp_path)
    assert statuses(tmp_path) == {
        (1, "0", "sleeper"): {"timeout"},
        (1, "0", "llg"): {"ok"},
        (1, "1", "llg"): {"ok"},
    }
    late = [row for row in rows(tmp_path) if row["label"] == "sleeper"]
    assert all("limit of 0.3 s" in row["error"] for row in late)
    assert all(float(row["seconds"]) < 10 for row in late)


def test_an_attack_that_cannot_be_interrupted_loses_its_worker(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.engine.ray.GRACE", 2.0)
    simulate(sleeping("catches", RAY), tmp_path)
    found = statuses(tmp_path)
    assert found.pop((1, "0", "sleeper")) == {"timeout"}
    assert set(map(frozenset, found.values())) == {frozenset({"ok"})}


# --- an engine that cannot start --------------------------------------------------------------


def test_a_cluster_that_is_not_there_is_one_clear_error(tmp_path):
    code = (
        "from tiny import scenario\n"
        "from fedsim.errors import EngineError\n"
        "from fedsim.simulation import simulate\n"
        "try:\n"
        "    simulate(scenario(engine={'address': '127.0.0.1:1'}), 'run')\n"
        "except EngineError as error:\n"
        "    print('EngineError:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "RAY_gcs_rpc_server_connect_timeout_s": "1"},
    )
    assert "EngineError: Ray cannot start or reach 127.0.0.1:1" in done.stdout, done.stderr[-2000:]


# --- Ctrl-C -----------------------------------------------------------------------------------


def alive(mark: str) -> list[str]:
    """Command lines of the processes that inherited a mark."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:90])
        except OSError:
            continue
    return [command for command in found if command.strip()]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for workers in /proc")
@pytest.mark.parametrize(
    ("engine", "whole_group", "sleeps"),
    [
        ({"workers": 1}, False, False),
        ({"workers": 1}, True, True),
        (RAY, False, True),
        (RAY, True, False),
        ({"name": "flower", "workers": 2}, True, False),
    ],
    ids=["inline", "inline-in-an-attack", "ray-in-an-attack", "ray-group", "flower-group"],
)
def test_ctrl_c_ends_a_run_and_keeps_what_was_found(engine, whole_group, sleeps, tmp_path):
    attacks = [{"name": "llg"}]
    if sleeps:
        attacks.append({"name": "sleeper", "how": "deaf", "rounds": [1], "victims": [0]})
    run = scenario(
        training={"rounds": 500, "clients": 4, "clients_per_round": 4},
        defenses=[{"name": "faulty", "how": "slow", "round": 1000}],
        adversaries=attacks,
        engine=engine,
    )
    (tmp_path / "run.toml").write_text(run.to_toml(), encoding="utf-8")
    mark = f"FEDSIM_TEST_{uuid.uuid4().hex}"
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsim.cli", "run", "run.toml", "--out", "run"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, mark: "1"},
        # A test run in the background of a shell inherits an ignored SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        found = tmp_path / "run" / "findings.csv"
        deadline = time.monotonic() + 150
        while not (found.exists() and found.read_bytes().count(b"\n") > 4 * 3):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, "no finding within 150 s"
            time.sleep(0.1)
        if sleeps:
            time.sleep(0.5)
        before = rows(tmp_path / "run")
        asked = time.monotonic()
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[0]
        took = time.monotonic() - asked
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130, output
    assert took < 5, f"{took:.1f} s\n{output}"
    assert "interrupted" in output
    assert "Traceback" not in output
    after = timeless(tmp_path / "run")
    assert len(after) >= len(before)
    assert {row["status"] for row in after} == {"ok"}
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    assert (tmp_path / "run" / "findings.parquet").exists()
    deadline = time.monotonic() + 10
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


