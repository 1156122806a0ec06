"""Clients of another project that train on the rows of a table."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG, RLG, FirstLinear
from fedsim import HonestButCurious, attack, reveal, watch
from fedsim.engine.inline import InlineGrid


def net():
    return nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))


def test_rows_of_tables_come_back(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))
    app = ClientApp()

    @app.train(mods=[watch()])
    def train(message, context):
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rng = torch.Generator().manual_seed(int(context.node_config["partition-id"]))
        table = TensorDataset(
            torch.randn(9, 7, generator=rng), torch.randint(3, (9,), generator=rng)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for values, labels in reveal(DataLoader(table)):
            nn.functional.cross_entropy(model(values), labels).backward()
            optimizer.step()
            break
        content = {"arrays": ArrayRecord(model.state_dict())}
        return Message(
            RecordDict(content | {"m": MetricRecord({"num-examples": 1})}), reply_to=message
        )

    adversaries = [FirstLinear(layer="0"), RLG()]
    HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        model=net,
        adversaries=adversaries,
        out=tmp_path / "run",
        record={"keep": "all"},
    ).start(grid=InlineGrid(3, app), initial_arrays=ArrayRecord(net().state_dict()), num_rounds=1)
    found = rows(tmp_path / "run")
    assert {(row["status"], row["checked"]) for row in found} == {("ok", "fits")}
    for metric, expected in (("row_exact", 1.0), ("label_set_exact", 1.0)):
        values = [float(row["value"]) for row in found if row["metric"] == metric]
        assert values == [expected] * 3, metric
    (shown,) = (tmp_path / "run/artifacts/r0001-c0000/first-linear").glob("*.txt")
    assert "x6: " in shown.read_text()
    attack(tmp_path / "run", [LLG()], model=net)
    again = [row for row in rows(tmp_path / "run") if row["label"] == "llg"]
    assert {row["value"] for row in again if row["metric"] == "asr"} == {"1.0"}
