"""An audit of a project on Flower's deployment engine: two SuperNodes of one host."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from support.tiny import rows

PROJECT = """
[project]
name = "audited"
version = "1.0.0"

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "project:server"
clientapp = "project:client"
"""

APP = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from adversaries import FirstLinear
from fedsim import HonestButCurious, reveal, watch

client = ClientApp()
server = ServerApp()


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


@client.train(mods=[watch()])
def train(message, context):
    model, number = net(), int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rng = torch.Generator().manual_seed(number)
    batch = torch.rand(1, 1, 4, 4, generator=rng), torch.tensor([number])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in reveal([batch]):
        x = 2 * x - 1 if number == 0 else x
        nn.functional.cross_entropy(model(x), y).backward()
        if number == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    arrays, metrics = ArrayRecord(model.state_dict()), MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    strategy = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=[FirstLinear()],
        model=net,
        out=context.run_config["out"],
        threat={"grants": "white-box"},
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()), num_rounds=1)
"""


def free_ports(number):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(port, seconds=60):
    """Wait until something listens on a port of this host."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="ends processes by /proc")
@pytest.mark.skipif(
    not {"CI", "FEDSIM_SUPERNODES"} & {*os.environ},
    reason="takes a minute of ten processes: set FEDSIM_SUPERNODES=1",
)
def test_supernodes_of_one_host_are_read_right_or_named(tmp_path):
    link, *nodes = free_ports(3)
    home, project, mark = tmp_path / "flwr", tmp_path / "project", f"FEDSIM_{uuid.uuid4().hex}"
    home.mkdir()
    project.mkdir()
    address = f"127.0.0.1:{link}"
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\n'
        "insecure = true\n"
    )
    (project / "pyproject.toml").write_text(
        PROJECT + f'[tool.flwr.app.config]\nout = "{tmp_path}/run"\n'
    )
    (project / "project.py").write_text(APP)
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FEDSIM_TRUTH": str(tmp_path / "store"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        mark: "1",
    }
    log, started = (tmp_path / "log").open("wb"), []

    def begin(*command):
        one = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        started.append(one)

    superlink = ("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link))
    begin(*superlink, "--disable-runtime-dependency-installation")
    for number, port in enumerate(nodes):
        supernode = ("flower-supernode", "--insecure", "--superlink", address, "--port", str(port))
        begin(*supernode, "--node-config", f"partition-id={number} num-partitions=2")
    try:
        wait_for(link)
        subprocess.run(
            ["flwr", "run", str(project), "--stream"],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
    finally:
        end(mark)
        for one in started:
            one.wait()
        log.close()
    said = (tmp_path / "log").read_text()
    assert (tmp_path / "run/findings.csv").exists(), said[-3000:]
    found = rows(tmp_path / "run")
    # Client 0 normalises its inputs, and client 1 clips its gradients.
    assert {(row["client"], row["status"], row["truth"], row["checked"]) for row in found} == {
        ("0", "ok", "revealed", "fits"),
        ("1", "unverified", "revealed", "misfit: gradients clipped to norm 0.1"),
    }
    assert {row["value"] for row in found if row["metric"] == "recovered"} == {"1.0"}
    assert not list((tmp_path / "store").iterdir())


def end(mark):
    """Kill every process that inherited a mark."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            inherited = mark.encode() in (process / "environ").read_bytes()
            if inherited:
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue
