"""A run on somebody's Ray cluster, started beside it on loopback as `ray start` starts it."""

import csv
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.commands import python
from support.processes import kill_marked, marked, needs_proc

ROWS = ("training.rounds=1", "adversaries.1.iterations=5", "adversaries.1.restarts=0")


@contextmanager
def node(tmp_path: Path, *options: str, **environment: str) -> Iterator[None]:
    """One Ray node, until the block ends."""
    command = [Path(sys.executable).with_name("ray"), "start", *options, "--num-cpus=2"]
    log = (tmp_path / "ray.log").open("ab")
    started = subprocess.Popen(
        [*command, "--object-store-memory=100000000", "--disable-usage-stats", "--block"],
        env={**os.environ, **environment},
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield
    finally:
        started.terminate()
        started.wait(timeout=60)
        log.close()


@pytest.fixture(scope="module")
def head(tmp_path_factory) -> Iterator[str]:
    """The address of a cluster of one node."""
    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, clients = free.getsockname()[1], other.getsockname()[1]
    options = [
        f"--port={port}",
        f"--ray-client-server-port={clients}",
        "--node-ip-address=127.0.0.1",
        "--include-dashboard=false",
    ]
    # A folder of its own, or whoever starts Ray meanwhile joins this cluster; a short path, because
    # sockets have one.
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as temporary:
        options.append(f"--temp-dir={temporary}")
        with node(tmp_path_factory.mktemp("head"), "--head", *options):
            wait(f"127.0.0.1:{port}", 1)
            yield f"127.0.0.1:{port}"


def wait(address: str, nodes: int) -> None:
    """Until a cluster has as many nodes."""
    code = (
        "import ray, sys, time\n"
        "for _ in range(240):\n"
        "    try:\n"
        "        ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)\n"
        "    except Exception:\n"
        "        time.sleep(0.5)\n"
        "        continue\n"
        "    if sum(n['Alive'] for n in ray.nodes()) == int(sys.argv[2]):\n"
        "        break\n"
        "    ray.shutdown()\n"
        "    time.sleep(0.5)\n"
        "else:\n"
        "    sys.exit('the node did not join')\n"
    )
    subprocess.run([sys.executable, "-c", code, address, str(nodes)], check=True, timeout=200)


def run_scenario(
    folder: Path, *settings: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    options = [word for each in (*ROWS, *settings) for word in ("--set", each)]
    command = ["run", "first-rounds", "--quiet", "--out", str(folder), *options]
    env = {**os.environ, **environment}
    return python("-m", "fedsim.cli", *command, folder=folder.parent, env=env)


def findings(folder: Path) -> list[dict[str, str]]:
    with (folder / "findings.csv").open(newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def test_a_cluster_finds_what_one_process_finds(head, tmp_path):
    assert run_scenario(tmp_path / "inline", "engine.workers=1").returncode == 0
    done = run_scenario(tmp_path / "cluster", f"engine.address={head}", "engine.workers=1")
    assert done.returncode == 0, done.stderr
    rows = findings(tmp_path / "inline")
    assert rows
    assert findings(tmp_path / "cluster") == rows


@needs_proc
def test_a_killed_node_costs_a_retry_of_its_work(head, tmp_path):
    rounds = ("training.rounds=15", "training.clients_per_round=8")
    assert run_scenario(tmp_path / "inline", *rounds, "engine.workers=1").returncode == 0
    joins, mark = (f"--address={head}", "--node-ip-address=127.0.0.3"), f"NODE_{uuid.uuid4().hex}"
    with node(tmp_path, *joins, **{mark: "1"}):
        wait(head, 2)
        several = (*rounds, f"engine.address={head}", "engine.workers=1")
        with ThreadPoolExecutor() as pool:
            run = pool.submit(run_scenario, tmp_path / "cluster", *several)
            log, deadline = tmp_path / "cluster" / "log.jsonl", time.monotonic() + 120
            while not (log.exists() and '"round": 3' in log.read_text()):
                assert time.monotonic() < deadline, "no third round"
                assert not run.done(), run.result().stderr
                time.sleep(0.05)
            worked = " ".join(name for _, name in marked(mark))
            kill_marked(mark)
            done = run.result()
    assert "ray::" in worked  # a worker was on the node that died
    assert done.returncode == 0, done.stderr
    untold = {"attempt": ""}
    expected = [{**row, **untold} for row in findings(tmp_path / "inline")]
    assert [{**row, **untold} for row in findings(tmp_path / "cluster")] == expected


def test_without_an_address_a_run_keeps_to_itself_beside_a_cluster(head, tmp_path):
    done = run_scenario(tmp_path / "run", "engine.workers=2", RAY_ADDRESS=head)
    assert done.returncode == 0, done.stderr


def test_a_worker_of_another_version_is_one_clear_error(head, tmp_path):
    other = tmp_path / "site" / "fedsim"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    joins = (f"--address={head}", "--node-ip-address=127.0.0.2")
    with node(tmp_path, *joins, PYTHONPATH=str(other.parent)):
        wait(head, 2)
        done = run_scenario(tmp_path / "run", f"engine.address={head}", "engine.workers=1")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: the Ray node 127.0.0.2 has fedsim 0.0.9 (sources ")
    assert "this process has 0.1.0" in line
    assert "Start every node of the cluster from the same image" in line
