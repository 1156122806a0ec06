"""An audit of a project on Flower's deployment engine: two SuperNodes of one host."""

import os

import pytest
from support.flower import free_ports, needs_proc, processes, wait_for
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


@needs_proc
@pytest.mark.skipif(
    not {"CI", "FEDSIM_SUPERNODES"} & {*os.environ},
    reason="takes a minute of ten processes: set FEDSIM_SUPERNODES=1",
)
def test_supernodes_of_one_host_are_read_right_or_named(tmp_path):
    link, *nodes = free_ports(3)
    address, project = f"127.0.0.1:{link}", tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        PROJECT + f'[tool.flwr.app.config]\nout = "{tmp_path}/run"\n'
    )
    (project / "project.py").write_text(APP)
    with processes(tmp_path, FEDSIM_TRUTH=str(tmp_path / "store")) as flower:
        flower.superlink(f'address = "{address}"\ninsecure = true')
        superlink = ("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link))
        flower.begin(*superlink, "--disable-runtime-dependency-installation")
        for number, port in enumerate(nodes):
            node = ("flower-supernode", "--insecure", "--superlink", address, "--port", str(port))
            flower.begin(*node, "--node-config", f"partition-id={number} num-partitions=2")
        wait_for(link)
        flower.run("flwr", "run", str(project), "--stream", seconds=120)
    assert (tmp_path / "run/findings.csv").exists(), flower.said()[-3000:]
    found = rows(tmp_path / "run")
    # Client 0 normalises its inputs, and client 1 clips its gradients.
    assert {(row["client"], row["status"], row["truth"], row["checked"]) for row in found} == {
        ("0", "ok", "revealed", "fits"),
        ("1", "unverified", "revealed", "misfit: gradients clipped to norm 0.1"),
    }
    assert {row["value"] for row in found if row["metric"] == "recovered"} == {"1.0"}
    assert not list((tmp_path / "store").iterdir())
