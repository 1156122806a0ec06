"""All engines find the same; dead workers, time limits and Ctrl-C cost no row that was there."""

import contextlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from support.tiny import TRAINING, faulty, leads_nowhere, rows, same, scenario, timeless

from fedsim.engine import engine_name, knock, workers
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError
from fedsim.metrics import applicable

pytestmark = [
    pytest.mark.usefixtures("rogues_everywhere", "ray_session", "unreported"),
    pytest.mark.skipif(sys.platform == "win32", reason="process groups and SIGALRM are POSIX"),
]

RAY = {"name": "ray", "workers": 2}
ALONE = {"name": "ray", "workers": 1, "attack_workers": 1}
"""Where one worker of each kind shows it: each costs seconds to start."""

NOISE = {"name": "gaussian-noise", "sigma": 1e-4}


def statuses(folder: Path) -> dict[tuple[int, str, str], set[str]]:
    """Statuses by (round, client, adversary label)."""
    found = defaultdict(set)
    for row in rows(folder):
        found[int(row["round"]), row["client"], row["label"]].add(row["status"])
    return dict(found)


# --- one seed, one outcome --------------------------------------------------------------------

ALGORITHMS = {
    "fedsgd": {"algorithm": "fedsgd", "local_steps": 1},
    "fedavg": {"algorithm": "fedavg", "local_steps": 3, "momentum": 0.5},
}


def rich(engine: dict[str, object]):
    """Both algorithms, with sampling, client state, noise, failures, and attacks that draw."""
    common = {**TRAINING, "evaluate_clients": 2, "on_failure": "drop"}
    return scenario(
        training={},
        threat={"grants": "full", "follow": [1], "victims": 3},
        defenses=[{"name": "faulty", "how": "raise", "client": 1}, NOISE, {"name": "counting"}],
        adversaries=[
            {"name": "llg"},
            {"name": "dlg", "budget": 2, "rounds": [2]},
            {"name": "vandal", "rounds": [1]},
            {"name": "rubbish", "how": "raise", "victims": "all"},
        ],
        engine=engine,
        sweep={"training": [{**common, **algorithm} for algorithm in ALGORITHMS.values()]},
    )


def outcome(folder: Path, point: str):
    """Findings, utility, weights and pictures of one point of a run."""
    weights = {}
    for path in sorted(folder.rglob("global.safetensors")):
        own = path.parent.relative_to(folder / "checkpoint")
        # Flower's engine keeps the clients' state to itself.
        weights[own] = {k: v for k, v in load_file(path).items() if not k.startswith("client/")}
    return (
        [row for row in timeless(folder) if row["point"] == point],
        [row for row in rows(folder, "utility.csv") if row["point"] == point],
        weights,
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.png")},
    )


@pytest.fixture(scope="module")
def inline(tmp_path_factory):
    """The run folder of the inline engine."""
    folder = tmp_path_factory.mktemp("inline") / "run"
    simulate(rich({"workers": 1}), folder)
    return folder


def ears() -> set[str]:
    """The addresses on which Ray's processes that this one started listen."""
    found: set[str] = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found |= {
                one.laddr.ip
                for one in process.net_connections(kind="inet")
                if one.status == psutil.CONN_LISTEN
            }
    return found


@pytest.mark.parametrize(
    ("engine", "algorithms"),
    [
        ({"workers": 1}, ["fedsgd", "fedavg"]),
        (RAY, ["fedsgd", "fedavg"]),
        ({"name": "flower", "workers": 2}, ["fedavg"]),  # a start of 20 s each
    ],
    ids=["inline", "ray", "flower"],
)
@pytest.mark.timeout(600)  # Ray's workers give way to whatever else the machine does
def test_every_engine_finds_the_same_and_trains_the_same(engine, algorithms, inline, tmp_path):
    run = rich(engine)
    names = dict(zip(ALGORITHMS, run.points(), strict=True))
    points = [names[algorithm] for algorithm in algorithms]
    heard: set[str] = set()

    def observe(event, **fields):
        if event == "round":
            heard.update(ears())

    simulate(run, tmp_path / "run", points=points, observer=observe)
    assert heard or "name" not in engine or sys.platform != "linux"
    assert all(ipaddress.ip_address(one.removeprefix("::ffff:")).is_loopback for one in heard)
    for point in points:
        findings, utility, weights, pictures = outcome(tmp_path / "run", point)
        expected = outcome(inline, point)
        assert findings == expected[0]
        assert len(findings) == (2 * 3 * 8) + (1 * 3 * 13) + (1 * 3 * 6) + (2 * 4 * 10)
        assert utility == expected[1]
        assert len(weights) == len(points)
        for place, arrays in weights.items():
            assert arrays
            assert same(arrays, expected[2][place])
        assert pictures
        assert pictures.items() <= expected[3].items()


def test_the_engine_follows_from_the_number_of_workers():
    assert engine_name(scenario(engine={"workers": 1})) == "inline"
    assert engine_name(scenario(engine={"workers": 3})) == "ray"
    assert engine_name(scenario(engine={"workers": 1, "address": "auto"})) == "ray"
    assert engine_name(scenario(engine={"workers": 3, "name": "inline"})) == "inline"
    alone = scenario(engine={"workers": "auto"}, training={"clients_per_round": 1})
    assert workers(alone) == 1


# --- workers that die, attacks that do not end ------------------------------------------------


def test_deadly_and_endless_attacks_cost_their_own_rows_only(tmp_path, monkeypatch):
    monkeypatch.setattr("fedsim.engine.ray.attacks.GRACE", 3.0)
    endless = [
        {"name": "sleeper", "label": how, "how": how, "timeout": 0.3, "victims": [0], "rounds": [1]}
        for how in ("reports", "deaf", "catches")
    ]
    run = scenario(
        training={"clients_per_round": 6},
        adversaries=[
            {"name": "llg"},
            {"name": "deadly", "victims": [4], "rounds": [1]},
            *endless,
            {"name": "idlg"},
        ],
        engine={**RAY, "attack_workers": 2},
    )
    simulate(run, tmp_path)
    found = statuses(tmp_path)
    places = [(round, str(client)) for round in (1, 2) for client in range(6)]
    expected = {(*place, label): {"ok"} for place in places for label in ("llg", "idlg")}
    expected |= {(1, "0", how): {"timeout"} for how in ("reports", "deaf", "catches")}
    expected[1, "4", "deadly"] = {"failed"}
    assert found == expected
    by_label = defaultdict(list)
    for row in rows(tmp_path):
        by_label[row["label"]].append(row)
    assert all("worker died" in row["error"] for row in by_label["deadly"])
    for how in ("reports", "deaf", "catches"):
        assert all("limit of 0.3 s" in row["error"] for row in by_label[how])
    for label in ("deadly", "reports", "deaf", "catches"):
        assert {row["metric"] for row in by_label[label]} == {
            metric.name for metric in applicable({"label_counts", "labels"})
        }
        assert all(row["baseline"] and not row["value"] for row in by_label[label])


@pytest.mark.parametrize("how", ["reports", "deaf"])
def test_an_endless_attack_is_a_timeout_in_this_process_too(how, tmp_path):
    run = scenario(
        training={"rounds": 1, "clients": 2, "clients_per_round": 2},
        adversaries=[
            {"name": "sleeper", "how": how, "timeout": 0.3, "victims": [0]},
            {"name": "llg"},
        ],
    )
    simulate(run, tmp_path)
    assert statuses(tmp_path) == {
        (1, "0", "sleeper"): {"timeout"},
        (1, "0", "llg"): {"ok"},
        (1, "1", "llg"): {"ok"},
    }
    late = [row for row in rows(tmp_path) if row["label"] == "sleeper"]
    assert all("limit of 0.3 s" in row["error"] for row in late)
    assert all(float(row["seconds"]) < 10 for row in late)


def test_a_client_that_kills_its_worker_is_named_and_the_others_go_on(tmp_path):
    engine = {**RAY, "attack_workers": 1}
    simulate(faulty("dies", training={"on_failure": "drop", "rounds": 3}, engine=engine), tmp_path)
    found = statuses(tmp_path)
    assert len(found) == 3 * 6
    assert {place for place, how in found.items() if how != {"ok"}} == {(2, "2", "llg")}
    errors = {row["error"] for row in rows(tmp_path) if row["status"] == "failed"}
    assert all("worker died" in error for error in errors)
    assert all("or lower engine.workers" in error for error in errors)


# --- an engine that cannot start --------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", r"cannot be reached at engine\.address = 127\.0\.0\.1:1: .*refused"),
        ("no-such-host.invalid:6379", r"cannot be reached at engine\.address = no-such-host"),
        ("127.0.0.1", r"engine\.address = 127\.0\.0\.1: expected HOST:PORT"),
        ("local", r"engine\.address = local: expected HOST:PORT"),
        ("127.0.0.1:99999", "expected HOST:PORT"),
        ("my head:6379", "expected HOST:PORT"),
        ("127.0.0.1:²", "expected HOST:PORT"),
        ("ray://127.0.0.1:10001", r"ray:// is not supported.*on a machine of the cluster"),
        ("http://127.0.0.1:8265", "http:// is not supported"),
    ],
)
def test_an_address_that_leads_to_no_cluster_is_one_sentence_and_no_folder(address, said, tmp_path):
    leads_nowhere(address, said, tmp_path / "nowhere")


def test_an_address_that_does_not_answer_fails_within_seconds(monkeypatch):
    def silent(address, timeout):
        assert timeout == 5
        raise TimeoutError("timed out")

    monkeypatch.setattr("socket.create_connection", silent)
    with pytest.raises(EngineError, match=r"192\.0\.2\.1:6379: timed out"):
        knock("192.0.2.1:6379")


def test_too_few_gpus_are_an_error_and_no_endless_wait(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    greedy = scenario(engine={"name": "ray", "workers": 2, "gpus_per_client": 64})
    with pytest.raises(EngineError, match=r"need 128 GPUs, and Ray has .*gpus_per_client"):
        simulate(greedy, tmp_path / "greedy")


def test_a_short_limit_is_the_attack_s_and_not_its_worker_s(tmp_path):
    quick = scenario(engine=ALONE, threat={"timeout": 1.0})
    simulate(quick, tmp_path)
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}


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
    ("engine", "how", "sleeps"),
    [
        ({"workers": 1}, "interrupt", True),
        (ALONE, "interrupt all", True),
        ({"name": "flower", "workers": 1}, "interrupt all", False),
        ({"workers": 1}, "terminate", True),
        (ALONE, "terminate", True),
        ({"name": "flower", "workers": 1}, "terminate", False),
        (ALONE, "terminate all", True),
    ],
    ids=["inline", "ray", "flower", "inline term", "ray term", "flower term", "ray term all"],
)
def test_ctrl_c_and_sigterm_end_a_run_and_keep_what_was_found(engine, how, sleeps, tmp_path):
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
        while not (found.exists() and found.read_bytes().count(b"\n") > 3):
            assert process.poll() is None, process.stdout.read()
            assert time.monotonic() < deadline, "no finding within 150 s"
            time.sleep(0.1)
        time.sleep(0.5 if sleeps else 0)
        before = rows(tmp_path / "run")
        asked = time.monotonic()
        number = signal.SIGINT if how.startswith("interrupt") else signal.SIGTERM
        # To all processes as a terminal does, or `timeout`.
        (os.killpg if how.endswith("all") else os.kill)(process.pid, number)
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
