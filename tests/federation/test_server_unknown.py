"""In somebody's own Flower project, what nobody stated is unknown to page and adversaries."""

import json
import random
import tomllib

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import timeless
from torch import nn

from adversaries import LLG
from defenses import GaussianNoise
from fedsim import Adversary, HonestButCurious, Knowledge, Reconstruction, defend, diagnose
from fedsim.attacking.audit import audit_campaign
from fedsim.engine.attack import attack
from fedsim.engine.inline import InlineGrid
from fedsim.errors import RunFolderError, ScenarioError
from fedsim.records import Interception, Update
from fedsim.runs.provenance import read
from fedsim.tasks.images import Images


class Watcher(Adversary):
    """Keeps what it is shown."""

    name = "watcher"
    needs = Knowledge.GRADIENT
    recovers = frozenset({"label_set"})

    def reconstruct(self, seen, job):
        SEEN.append(seen)
        return Reconstruction(label_set=frozenset())


SEEN = []


class Own(Images):
    """The same data, another model."""

    def build(self):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))


def adam_app(task) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[defend(GaussianNoise(sigma=0.01))])
    def train(message, context):
        module = task.module().train()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = int(context.node_config["partition-id"])
        (batch,) = task.batches(number, 1, batch_size=2, steps=1)
        nn.functional.cross_entropy(module(batch.inputs), batch.labels).backward()
        torch.optim.Adam(module.parameters(), lr=0.01).step()
        metrics = MetricRecord({"num-examples": len(batch)})
        arrays = ArrayRecord(module.state_dict())
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    return app


def audit(out, adversaries=None, **settings):
    """What the adversary was shown, and the run folder."""
    task = Own(clients=2, model="cnn", seed=5)
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=[Watcher()] if adversaries is None else adversaries,
        task=task,
        out=out,
        threat={"grants": "full", "victims": 1},
        **settings,
    )
    SEEN.clear()
    random.seed(0)
    curious.start(
        grid=InlineGrid(2, adam_app(task)),
        initial_arrays=ArrayRecord(task.module().state_dict()),
        num_rounds=1,
        train_config=ConfigRecord({"lr": 0.01}),
    )
    return list(SEEN), out


def test_nobodys_word_is_no_fact(tmp_path):
    (seen,), out = audit(tmp_path / "silent")
    assert not seen.exact
    assert seen.defenses is None
    assert seen.steps is None
    assert not seen.granted & (Knowledge.DEFENSE | Knowledge.LOCAL_STEPS)
    kept = tomllib.loads((out / "scenario.toml").read_text())
    assert kept["training"] == {"clients": 2}
    assert "defenses" not in kept
    assert "model" not in kept["task"]
    assert {"defenses", "task.model", "training.lr"} <= set(read(out)["unknown"])
    page = (out / "report.html").read_text()
    assert "clients sent their updates as they were" not in page
    for key in ("model", "optimizer", "lr", "rounds", "algorithm"):
        assert f"<dt>{key}</dt><dd>unknown</dd>" in "".join(page.split("\n")).replace("> <", "><")


def test_what_is_stated_is_told(tmp_path):
    stated = {"optimizer": "sgd", "local_steps": 1, "batch_size": 2}
    (seen,), out = audit(tmp_path / "sgd", training=stated, defenses=[])
    assert seen.exact
    assert seen.steps == 1
    assert seen.defenses == ()
    assert "clients sent their updates as they were" in (out / "report.html").read_text()
    assert json.loads((out / "provenance.json").read_text())["optimizer"] == "sgd"


def test_the_gradient_after_adam_is_not_exact(tmp_path):
    stated = {"optimizer": "Adam", "local_steps": 1, "lr": 0.01}
    (seen,), out = audit(tmp_path / "adam", training=stated)
    assert not seen.exact
    assert read(out)["optimizer"] == "adam"


def test_epochs_are_counted_in_examples_that_a_reply_names(tmp_path):
    task = Own(clients=2, model="cnn", seed=5)
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=[Watcher()],
        model=task.build,
        example=(torch.zeros(2, 1, 8, 8), torch.zeros(2).long()),
        out=tmp_path / "run",
        threat={"grants": "full", "victims": 1},
        training={"local_epochs": 3, "batch_size": 1, "lr": 0.01},
    )
    SEEN.clear()
    curious.start(
        grid=InlineGrid(2, adam_app(task)),
        initial_arrays=ArrayRecord(task.module().state_dict()),
        num_rounds=1,
    )
    assert [(seen.steps, seen.num_examples) for seen in SEEN] == [(6, 6)]


def test_mistaken_keys_are_named(tmp_path):
    with pytest.raises(ScenarioError, match="optimizer is 3; expected a name"):
        audit(tmp_path / "one", training={"optimizer": 3})
    with pytest.raises(ScenarioError, match="local_steps"):
        audit(tmp_path / "two", training={"local_step": 3})


def test_an_own_project_is_recorded_and_attacked_elsewhere(tmp_path):
    _, out = audit(tmp_path / "run", [LLG()], record={"keep": "all"})
    live, table = timeless(out), out / "findings.csv"
    running = audit_campaign([LLG()], Own(clients=2, seed=5), out=tmp_path / "running")
    with pytest.raises(RunFolderError, match=r"is being written by process [0-9]+ on .*, since 20"):
        attack(tmp_path / "running", [LLG()], task=Own(clients=2, seed=5))
    running.finish()
    table.write_text(table.read_text().splitlines()[0] + "\n")
    (out / "attacks.jsonl").unlink()
    with pytest.raises(RunFolderError, match=r"task\.model is not stated .* task="):
        attack(out, [LLG()])
    attack(out, [LLG()], task=Own(clients=2, model="cnn", seed=5))
    assert timeless(out) == live
    assert {row["status"] for row in live} == {"ok"}
    assert not any("LOCAL_STEPS" in row["granted"] for row in live)
    table = diagnose(out, task=Own(clients=2, model="cnn", seed=5))
    assert table["steps"].isna().all(), "nobody stated them"
    assert not table["sentence"].str.contains("1 local step").any()
    _, only = audit(tmp_path / "only", [], record={"keep": "all"})
    attack(only, [LLG()], task=Own(clients=2, model="cnn", seed=5))
    assert len(timeless(only)) == len(live)


def test_what_was_not_stated_is_not_granted_with_many_workers_either(tmp_path, ray_session):
    task = Images(clients=2, model="mlp", seed=5)
    settings = {"record": {"keep": "all"}, "threat": {"grants": "full"}}
    running = audit_campaign([], task, out=tmp_path, **settings)
    module = task.module()
    before = task.arrays(module)
    update = Update(tensors={k: v + 0.1 for k, v in before.items()}, kind="weights")
    running.intercept(1, [Interception(1, (0,), before, update)])
    running.finish()
    attack(tmp_path, changes={"adversaries": [{"name": "llg"}], "engine": {"attack_workers": 2}})
    (granted,) = {row["granted"] for row in timeless(tmp_path)}
    assert "LOCAL_STEPS" not in granted
    assert "DEFENSE" not in granted


@pytest.mark.parametrize(
    "record", [ConfigRecord({"warmup": 3}), ArrayRecord({"control": torch.zeros(1)})]
)
def test_a_strategy_that_sends_several_records_of_a_kind_is_named(record, tmp_path):
    class Mine(FedAvg):
        def configure_train(self, *args):
            for message in super().configure_train(*args):
                message.content["more"] = record
                yield message

    task = Own(clients=2, model="cnn", seed=5)
    curious = HonestButCurious(
        Mine(fraction_evaluate=0.0), adversaries=[LLG()], task=task, out=tmp_path / "run"
    )
    arrays = ArrayRecord(task.module().state_dict())
    kind = type(record).__name__
    with pytest.raises(ScenarioError, match=f"Mine sends 2 records of the kind {kind}"):
        curious.start(grid=InlineGrid(2, ClientApp()), initial_arrays=arrays, num_rounds=1)
