"""`engine.address = "auto"` leads to a cluster that answers, or to an error within seconds."""

import contextlib
import socket
import sys
import threading
from types import SimpleNamespace

import psutil
import pytest
import ray
from ray._private import services
from support.tiny import leads_nowhere, scenario

from fedsim.engine import knock
from fedsim.engine.ray import cluster
from fedsim.engine.simulate import simulate
from fedsim.errors import EngineError

DEAD = "192.0.2.1:6379"
OTHER = "192.0.2.2:6379"


@pytest.fixture
def machine(monkeypatch):
    """Sets RAY_ADDRESS, the clusters and runs whose nodes are here, and the last `ray start`."""

    def have(*clusters: str, stated: str = "", latest: str | None = None, runs: int = 0) -> None:
        nodes = [(address, "/var/ray") for address in clusters]
        nodes += [(f"127.0.0.1:{port}", "/var/fedsim-ray-x") for port in range(runs)]
        found = [
            ("raylet", ["raylet", f"--gcs-address={address}", f"--session_dir={folder}/session_1"])
            for address, folder in nodes
        ]
        found += [("python", ["agent", f"--gcs-address={DEAD}"]), ("", None)]
        processes = [SimpleNamespace(info={"name": n, "cmdline": words}) for n, words in found]
        monkeypatch.setenv("RAY_ADDRESS", stated)
        monkeypatch.setattr(psutil, "process_iter", lambda attributes: processes)
        monkeypatch.setattr(services, "find_bootstrap_address", lambda folder: latest)

    return have


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ({"stated": DEAD, "latest": OTHER}, (DEAD, "RAY_ADDRESS")),
        ({"stated": "auto", "latest": OTHER}, (OTHER, "the last ray start on this machine")),
        ({"latest": OTHER, "runs": 2}, (OTHER, "the last ray start on this machine")),
    ],
)
def test_auto_is_what_ray_takes_for_it(here, expected, machine):
    machine(**here)
    assert cluster.found_cluster() == expected


def test_auto_is_the_cluster_of_the_node_here_beside_local_runs(machine):
    machine(OTHER, latest=DEAD, runs=2)
    assert cluster.found_cluster() == (OTHER, "the node on this machine")
    machine(OTHER, DEAD, latest=DEAD)
    assert cluster.found_cluster() == (DEAD, "the last ray start on this machine")


def test_auto_knocks_where_ray_would_connect_and_not_at_loopback(machine, monkeypatch):
    monkeypatch.setattr(services, "get_node_ip_address", lambda: "192.0.2.7")
    machine("127.0.0.1:6379")
    assert cluster.found_cluster()[0] == "192.0.2.7:6379"


@pytest.mark.parametrize("runs", [0, 2])
def test_auto_without_a_node_says_how_to_start_one(runs, machine, tmp_path):
    machine(runs=runs)
    nowhere = scenario(engine={"name": "ray", "workers": 2, "address": "auto"})
    with pytest.raises(EngineError) as error:
        simulate(nowhere, tmp_path / "nowhere")
    assert str(error.value) == (
        'engine.address = "auto", and Ray finds no node on this machine. Start one (ray start '
        "--head, or ray start --address=HEAD:6379), state HOST:PORT of the head, or leave out the "
        "address"
    )
    assert not (tmp_path / "nowhere").exists()


def test_auto_does_not_choose_among_clusters(machine):
    machine(OTHER, DEAD)
    with pytest.raises(EngineError, match=rf"of 2 Ray clusters: {DEAD}, {OTHER}\. State one"):
        knock("auto")


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        (
            "localhost:1",
            r"engine\.address = auto, which is [\d.]+:1 \(RAY_ADDRESS\): "
            r".*(refused|timed out).*\. "
            r"Start it there \(ray start --head\), unset RAY_ADDRESS, state another HOST:PORT",
        ),
        ("local", 'RAY_ADDRESS, which is "local" and no cluster'),
        ("ray://192.0.2.1:10001", "RAY_ADDRESS = ray://.*not supported"),
        ("192.0.2.1", r"RAY_ADDRESS = 192\.0\.2\.1: expected HOST:PORT"),
    ],
)
def test_a_ray_address_that_leads_to_no_cluster_is_refused_within_seconds(
    stated, said, monkeypatch, tmp_path
):
    monkeypatch.setenv("RAY_ADDRESS", stated)
    leads_nowhere("auto", said, tmp_path / "nowhere")


@pytest.mark.parametrize("greets", [True, False])
def test_a_port_of_another_program_is_refused_within_seconds(greets, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "127.0.0.1:{1}".format(*other.getsockname())

        def answer():
            while greets:
                with contextlib.suppress(OSError):
                    caller, _ = other.accept()
                    caller.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n")
                    caller.close()
                if other.fileno() < 0:
                    return

        threading.Thread(target=answer, daemon=True).start()
        leads_nowhere(address, f"at engine.address = {address}, but no Ray", tmp_path / "nowhere")
        other.close()


@pytest.mark.skipif(sys.platform == "win32", reason="Ray's sessions are tested on POSIX")
@pytest.mark.usefixtures("ray_session")
def test_the_session_of_a_run_is_no_cluster():
    started = ray.get_runtime_context().gcs_address
    assert started in services.find_gcs_addresses()
    assert started not in cluster._running()
