"""A run on somebody's Ray cluster, started beside it on loopback as `ray start` starts it."""

import csv
import json
import os
import re
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from support.commands import python
from support.processes import kill_marked, marked, needs_proc

from fedsim.engine.ray import cluster

pytestmark = pytest.mark.timeout(600)  # a node takes a minute to start where others work

ROWS = ("training.rounds=1", "adversaries.1.iterations=5", "adversaries.1.restarts=0")
MANY = ("training.rounds=15", "training.clients_per_round=8")
"""Rounds enough for a node to be lost meanwhile."""

PATIENCE = 240
"""Seconds to wait for nodes and rounds, which take minutes on a busy machine."""

LEAN = ("--no-monitor", "--include-log-monitor=false")
"""Without processes that no test looks at."""

ALERT = {"RAY_health_check_period_ms": "500"}
"""With it a head takes 3 seconds to notice that a node was killed, instead of 20."""


@contextmanager
def node(tmp_path: Path, *options: str, cpus: int = 2, **environment: str) -> Iterator[None]:
    """One Ray node, until the block ends."""
    command = [Path(sys.executable).with_name("ray"), "start", *options, f"--num-cpus={cpus}"]
    log = (tmp_path / "ray.log").open("ab")
    started = subprocess.Popen(
        [*command, *LEAN, "--object-store-memory=100000000", "--disable-usage-stats", "--block"],
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
        with node(tmp_path_factory.mktemp("head"), "--head", *options, **ALERT):
            wait(f"127.0.0.1:{port}", 1)
            yield f"127.0.0.1:{port}"


def wait(address: str, nodes: int) -> None:
    """Until a cluster has as many nodes."""
    host, _, port = address.partition(":")
    deadline = time.monotonic() + PATIENCE
    while True:  # Ray takes many seconds to say that nobody listens yet
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "the head did not start"
            time.sleep(0.1)
    # Its own client, because `ray.init` makes every node start workers.
    client = GcsClient(address=address)
    alive = GcsNodeInfo.GcsNodeState.ALIVE
    while len(client.get_all_node_info(timeout=60, state_filter=alive)) != nodes:
        assert time.monotonic() < deadline, "the node did not join"
        time.sleep(0.5)


IMPATIENT = "engine.place_timeout=3"


def run_scenario(
    folder: Path, *settings: str, code: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    options = [word for each in (*ROWS, *settings) for word in ("--set", each)]
    command = ["run", "first-rounds", "--quiet", "--out", str(folder), *options]
    env = {**os.environ, **environment}
    program = ["-c", code] if code else ["-m", "fedsim.cli"]
    return python(*program, *command, folder=folder.parent, env=env)


def findings(folder: Path) -> list[dict[str, str]]:
    with (folder / "findings.csv").open(newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def third_round(folder: Path) -> bool:
    log = folder / "log.jsonl"
    return log.exists() and '"round": 3' in log.read_text()


def first_attacks(folder: Path) -> bool:
    table = folder / "findings.csv"
    return table.exists() and table.read_bytes().count(b"\n") > 3


def run_and_kill(
    head: str,
    folder: Path,
    *settings: str,
    after: Callable[[Path], bool],
    cpus: int = 2,
    gpus: int = 0,
    works: str = "",
    nodes: int = 2,
) -> subprocess.CompletedProcess[str]:
    """A run whose cluster loses its last of `nodes` `after` something.

    Not before a worker is seen there, or one that does what `works` names (CLASS.METHOD): while one
    starts, Ray takes up to twenty seconds to notice that the node is lost.
    """

    def at_work(name: str) -> bool:
        if works:
            return name == f"ray::{works}"
        return name.startswith("ray::") and "Worker" in name

    joins = (f"--address={head}", "--node-ip-address=127.0.0.3", f"--num-gpus={gpus}")
    mark = f"NODE_{uuid.uuid4().hex}"
    with node(folder.parent, *joins, cpus=cpus, **{mark: "1"}):
        wait(head, nodes)
        on_it = (*MANY, f"engine.address={head}", "engine.workers=1", *settings)
        with ThreadPoolExecutor() as pool:
            run = pool.submit(run_scenario, folder, *on_it)
            deadline = time.monotonic() + PATIENCE
            while not after(folder) or not any(at_work(name.strip()) for _, name in marked(mark)):
                assert time.monotonic() < deadline, f"not so far within {PATIENCE} s"
                assert not run.done(), run.result().stderr
                time.sleep(0.05)
            kill_marked(mark)
            done = run.result()
        wait(head, nodes - 1)  # or the next test takes it for a node of its own
        return done


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> list[dict[str, str]]:
    """The findings of a run in one process."""
    folder = tmp_path_factory.mktemp("inline") / "run"
    assert run_scenario(folder, *MANY, "engine.workers=1").returncode == 0
    return once(folder)


def once(folder: Path) -> list[dict[str, str]]:
    """Findings, whichever attempt they come from."""
    return [{**row, "attempt": ""} for row in findings(folder)]


@needs_proc
def test_a_killed_node_costs_a_retry_of_its_work(head, expected, tmp_path):
    done = run_and_kill(head, tmp_path / "run", after=third_round)
    assert done.returncode == 0, done.stderr
    assert once(tmp_path / "run") == expected


@needs_proc
def test_a_run_that_loses_all_places_for_attacks_ends_and_can_be_resumed(head, expected, tmp_path):
    folder = tmp_path / "run"
    needs_gpu = "engine.gpus_per_attack=0.5"  # which the lost node alone says that it has
    done = run_and_kill(head, folder, needs_gpu, IMPATIENT, after=first_attacks, gpus=1)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert "no place for any of 1 attack workers for 3 s. Each needs 1 CPU and 0.5 GPUs" in error
    assert re.search(r"nodes left: [\d.]+ \(2 CPUs\), with 1 CPU free\. Start a node", error)
    assert "--resume" in error
    found = once(folder)
    assert 0 < len(found) < len(expected)
    here = ("--set", "engine.address=", "--set", "engine.gpus_per_attack=0")
    command = ("-m", "fedsim.cli", "run", str(folder), "--resume", "--quiet", *here)
    done = python(*command, folder=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert sorted(map(str, once(folder))) == sorted(map(str, expected))


@needs_proc
def test_a_run_that_loses_all_places_for_clients_ends(head, tmp_path):
    large = "engine.cpus_per_client=3"  # more than the head has
    folder = tmp_path / "run"
    done = run_and_kill(head, folder, large, IMPATIENT, after=third_round, cpus=4)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert "no place for any of 1 client workers for 3 s. Each needs 3 CPUs" in error
    assert (folder / "report.html").exists()


@needs_proc
def test_a_run_goes_on_with_the_workers_that_still_have_a_place(head, expected, tmp_path):
    # Two nodes say that they have a GPU and one CPU, and the client worker needs both of the
    # head's: whatever Ray chooses, an attack worker is on each of the two.
    several = ("engine.attack_workers=2", "engine.cpus_per_client=2", "engine.gpus_per_attack=1")
    # So long a run that it has not ended when the warning is due.
    several += ("training.rounds=350", f"threat.rounds={[*range(1, 16)]}")
    folder = tmp_path / "run"
    stays = (f"--address={head}", "--node-ip-address=127.0.0.4", "--num-gpus=1")
    mark = f"NODE_{uuid.uuid4().hex}"

    def both_work(folder: Path) -> bool:
        # A worker that is still starting when the other node is lost has no place, either.
        started = any(name.startswith("ray::AttackWorker") for _, name in marked(mark))
        return started and first_attacks(folder)

    with node(tmp_path, *stays, cpus=1, **{mark: "1"}):
        wait(head, 2)
        done = run_and_kill(
            head,
            folder,
            *several,
            IMPATIENT,
            after=both_work,
            cpus=1,
            gpus=1,
            works="AttackWorker.perform",
            nodes=3,
        )
    assert done.returncode == 0, done.stderr
    assert once(folder) == expected
    warned = "1 of 2 attack workers for 3 s: the run goes on with the others"
    assert warned in (folder / "log.jsonl").read_text()


SHARED = """
import json
import sys
from pathlib import Path
from fedsim.engine.simulate import simulate
from fedsim.scenario import Scenario

shown = []

def observe(event, running=(), **fields):
    if event == "running" and running:
        shown.append([(one.adversary, one.node, str(one.progress or "")) for one in running])

local = ["training.rounds=1", "engine.name=ray", "engine.workers=1"]
simulate(Scenario.load("first-rounds", local), Path(sys.argv[1]) / "local")
scenario = Scenario.load("first-rounds", sys.argv[2:])
simulate(scenario, Path(sys.argv[1]) / "cluster", observer=observe)
print(json.dumps(shown))
"""


def test_attack_workers_share_a_gpu_of_another_node_and_report_from_there(head, tmp_path):
    """In a process that has a Ray session of its own already, which is no part of the cluster."""
    joins = (f"--address={head}", "--node-ip-address=127.0.0.3", "--num-gpus=1")
    settings = (
        f"engine.address={head}",
        "engine.workers=1",
        "engine.attack_workers=2",
        "engine.gpus_per_attack=0.5",
        "task.model=lenet-sigmoid",
        "training.rounds=2",
        "adversaries.1.iterations=40",
        "adversaries.1.restarts=0",
        "adversaries.1.tolerance=0.0",
        "adversaries.1.victims=all",
    )
    with node(tmp_path, *joins):
        wait(head, 2)
        done = python("-c", SHARED, str(tmp_path), *settings, folder=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout.splitlines()[-1])
    assert {place for rows in shown for _, place, _ in rows} == {"127.0.0.3"}
    assert max(map(len, shown)) == 2  # both on the only GPU that the cluster has
    assert [text for rows in shown for _, _, text in rows if "dlg" in text and " of 40" in text]


SAYS_WHAT_IT_JOINS = """
import sys, ray
from fedsim import cli
init = ray.init
def said(**options):
    print("joins", options["address"])
    return init(**options)
ray.init = said
sys.exit(cli.main())
"""


def test_without_an_address_a_run_keeps_to_itself_beside_a_cluster(head, tmp_path):
    own = ("engine.name=ray", "engine.workers=1")
    done = run_scenario(tmp_path / "run", *own, code=SAYS_WHAT_IT_JOINS, RAY_ADDRESS=head)
    assert done.returncode == 0, done.stderr
    assert "joins local" in done.stdout.splitlines()


def test_auto_joins_the_cluster_of_this_machine_which_finds_what_one_process_finds(head, tmp_path):
    settings = ("engine.address=auto", "engine.workers=1")
    done = run_scenario(tmp_path / "run", *settings, code=SAYS_WHAT_IT_JOINS, RAY_ADDRESS=head)
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("joins ")]
    joined = said.partition(" ")[2]
    assert joined in cluster._running()
    assert joined.rpartition(":")[2] == head.rpartition(":")[2]
    assert run_scenario(tmp_path / "inline", "engine.workers=1").returncode == 0
    rows = findings(tmp_path / "inline")
    assert rows
    assert findings(tmp_path / "run") == rows


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
