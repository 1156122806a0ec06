"""Another Flower project is watched: its model, its data, and no task."""

import json
import os
import random
import stat
import threading

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows, same, timeless, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG, FirstLinear
from defenses import GaussianNoise
from fedsim import HonestButCurious, attack, defend, diagnose, reveal, watch
from fedsim.engine.inline import InlineGrid
from fedsim.errors import FedsimError, ScenarioError
from fedsim.federation.training_hooks import Watching
from fedsim.federation.watching import TRUTH_KEY
from fedsim.runs.truth import Origin, TruthFile
from fedsim.runs.truth_store import find, store

CLIENTS = 3


class Net(nn.Module):
    """A small network of the project's own."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 24)
        self.out = nn.Linear(24, 4)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x.flatten(1))))


class Wider(Net):
    """A network of the same names and other shapes."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 25)


class Sideways(Net):
    """A network that takes other inputs."""

    def forward(self, x):
        return super().forward(x[..., :5])


class Normalised(nn.Module):
    """A normalisation without weights, which is not the model."""

    def forward(self, x):
        return (x - 0.5) / 0.25


def data(client):
    """A client's own images (24, 1, 8, 8) and labels, which fedsim has never seen."""
    rng = torch.Generator().manual_seed(100 + client)
    return TensorDataset(
        torch.rand(24, 1, 8, 8, generator=rng), torch.randint(4, (24,), generator=rng)
    )


def project(*mods, optimizer=torch.optim.SGD, batch=1, steps=1, shown=reveal, normalise=False):
    """A project's ClientApp, as its author wrote it, with `reveal` around the loader."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        client = int(context.node_config["partition-id"])
        rng = torch.Generator().manual_seed(message.content["config"]["server-round"])
        loader = DataLoader(data(client), batch_size=batch, shuffle=True, generator=rng)
        scale = Normalised() if normalise else nn.Identity()
        stepping = optimizer(net.parameters(), lr=0.1)
        for step, (x, y) in enumerate(shown(loader)):
            if step == steps:
                break
            stepping.zero_grad()
            nn.functional.cross_entropy(net(scale(x)), y).backward()
            stepping.step()
        with torch.no_grad():
            net(next(iter(loader))[0])  # an evaluation is no training
        arrays = ArrayRecord(net.state_dict())
        metrics = MetricRecord({"num-examples": batch * steps})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    return app


def audit(app, out, *adversaries, rounds=2, model=Net, **settings):
    """Train with a curious server, which knows the model and nothing else."""
    torch.manual_seed(3)
    random.seed(3)  # by which FedAvg samples its clients
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=adversaries,
        model=model,
        out=out,
        **{"threat": {"grants": "white-box"}, **settings},
    )
    return curious.start(
        grid=InlineGrid(CLIENTS, app),
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=rounds,
    )


def values(folder, metric):
    return [float(row["value"]) for row in rows(folder) if row["metric"] == metric]


@pytest.mark.parametrize("normalise", [False, True])
def test_images_come_back_as_the_model_received_them(normalise, tmp_path):
    audit(project(watch(), normalise=normalise), tmp_path / "run", FirstLinear(), LLG())
    found = rows(tmp_path / "run")
    assert {row["status"] for row in found} == {"ok"}, {row["error"] for row in found}
    assert len({row["victim"] for row in found}) == 2 * CLIENTS
    assert sum(values(tmp_path / "run", "recovered")) >= 2 * CLIENTS - 1
    assert set(values(tmp_path / "run", "asr")) == {1.0}
    assert (tmp_path / "run/report.html").exists()
    assert list((tmp_path / "run/artifacts").rglob("*.png"))


def test_training_is_the_same_with_and_without_a_watch(tmp_path):
    app = project(watch(), batch=4, steps=3)
    watched = audit(app, tmp_path / "run", LLG())
    torch.manual_seed(3)
    random.seed(3)
    alone = FedAvg(fraction_evaluate=0.0).start(
        grid=InlineGrid(CLIENTS, project(shown=iter, batch=4, steps=3)),
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=2,
    )
    assert same(weights(watched.arrays), weights(alone.arrays))


@pytest.mark.parametrize(
    ("optimizer", "name"), [(torch.optim.SGD, "sgd"), (torch.optim.AdamW, "adamw")]
)
def test_what_ran_is_seen_and_not_assumed(optimizer, name, tmp_path):
    app = project(watch(), optimizer=optimizer, batch=4, steps=3)
    audit(app, tmp_path / "run", LLG(), record={"keep": "all"})
    from fedsim import load

    one = next(iter(load(tmp_path / "run").recording())).update
    assert (one.optimizer, one.steps, one.num_examples, one.lr) == (name, 3, 12, 0.1)
    assert one.weight_decay == (0.01 if name == "adamw" else 0.0)
    assert {(row["local_steps"], row["batch_size"]) for row in rows(tmp_path / "run")} == {
        ("3", "4")
    }
    assert json.loads((tmp_path / "run/provenance.json").read_text())["optimizer"] == name


def test_a_recorded_project_is_attacked_later_with_the_same_rows(tmp_path):
    both = [LLG(), FirstLinear()]
    audit(project(watch()), tmp_path / "live", *both)
    audit(project(watch()), tmp_path / "run", record={"keep": "all"})
    assert not (tmp_path / "run/findings.csv").exists() or not rows(tmp_path / "run", empty=True)
    attack(tmp_path / "run", both, model=Net)
    assert timeless(tmp_path / "run") == timeless(tmp_path / "live")
    with pytest.raises(FedsimError, match=r"model=... if they revealed"):
        attack(tmp_path / "run", [LLG()])


def test_the_examples_are_the_clients_own_and_stay_on_the_machine(tmp_path):
    audit(project(watch(), batch=4), tmp_path / "run", LLG(), rounds=1)
    files = sorted((tmp_path / "run/truth").iterdir())
    assert [path.name for path in files] == [f"r0001-c000{n}.safetensors" for n in range(CLIENTS)]
    for client, path in enumerate(files):
        (batch,), held = TruthFile(path).inputs, data(client).tensors[0]
        assert all(any(torch.equal(image, own) for own in held) for image in batch)
    assert list((tmp_path / "truth").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "truth").stat().st_mode) == 0o700


def test_the_reply_carries_a_name_and_no_example():
    (reply,) = InlineGrid(1, project(watch())).send_and_receive(_first(1))
    record = reply.content.config_records[TRUTH_KEY]
    assert list(record) == ["name"]
    assert TruthFile(store() / f"{record['name']}.safetensors").seen.sizes == (1,)


def _first(clients):
    grid = InlineGrid(clients, project(watch()))
    content = {
        "arrays": ArrayRecord(Net().state_dict()),
        "config": ConfigRecord({"server-round": 1}),
    }
    return [Message(RecordDict(content), node, "train") for node in grid.clients]


def test_defenses_go_before_the_watch_and_hide_what_they_hide(tmp_path):
    noisy = project(defend(GaussianNoise(sigma=1.0), seed=0), watch())
    audit(noisy, tmp_path / "run", FirstLinear())
    assert sum(values(tmp_path / "run", "recovered")) == 0
    audit(project(defend(), watch()), tmp_path / "bare", FirstLinear())
    assert sum(values(tmp_path / "bare", "recovered")) > 0


def test_only_what_is_attacked_stays(tmp_path):
    audit(project(watch()), tmp_path / "run", LLG(), threat={"victims": [1]})
    assert {path.name[:11] for path in (tmp_path / "run/truth").iterdir()} == {
        "r0001-c0001",
        "r0002-c0001",
    }


def test_a_client_that_reveals_nothing_has_rows_without_values(tmp_path):
    def sometimes(loader):
        silent = torch.equal(loader.dataset.tensors[1], data(2).tensors[1])
        return iter(loader) if silent else reveal(loader)

    audit(project(watch(), shown=sometimes), tmp_path / "run", LLG())
    silent = [row for row in rows(tmp_path / "run") if row["client"] == "2"]
    assert {(row["status"], row["value"], row["baseline"]) for row in silent} == {("ok", "", "")}
    assert {row["value"] for row in rows(tmp_path / "run") if row["client"] != "2"} != {""}


@pytest.mark.parametrize(
    ("app", "model", "complaint"),
    [
        (lambda: project(watch()), Sideways, "cannot take the clients' inputs"),
        (lambda: project(watch()), Wider, r"'hidden.weight' has shape \(25, 64\), and the clients"),
        (
            lambda: project(watch()),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
            "the model has an array '1.bias', and the server has none",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(app, model, complaint, tmp_path):
    with pytest.raises(ScenarioError, match=complaint):
        audit(app(), tmp_path / "run", LLG(), model=model)


def test_reveal_keeps_the_loader_and_says_when_nobody_watches():
    loader = DataLoader(data(0), batch_size=6)
    shown = reveal(loader)
    assert len(shown) == 4
    assert shown.batch_size == 6
    with pytest.warns(UserWarning, match="outside of a watched training function"):
        assert sum(len(y) for _, y in shown) == 24


def test_what_was_loaded_ahead_and_not_used_does_not_count():
    watching, net = Watching(Origin()), Net()
    batches = list(zip(*data(0).tensors, strict=True))[:3]
    with watching.hooks():
        for x, y in batches:
            watching.offer((x[None], y[None]))
        net(batches[-1][0][None]).sum().backward()
        watching.offer((batches[0][0][None], batches[0][1][None]))
    seen = TruthFile(store() / f"{watching.save()}.safetensors")
    assert seen.seen.sizes == (1,)
    assert torch.equal(seen.inputs[0][0], batches[-1][0])


def test_large_inputs_leave_labels_and_counts(monkeypatch):
    monkeypatch.setattr("fedsim.federation.offered.MOST_BYTES", 500)
    watching, net = Watching(Origin()), Net()
    with watching.hooks():
        for x, y in DataLoader(data(0), batch_size=1):
            watching.offer((x, y))
            net(x).sum().backward()
    seen = TruthFile(store() / f"{watching.save()}.safetensors")
    assert seen.seen.partial
    assert len(seen.inputs) == 1
    assert seen.truth().inputs is None
    assert len(seen.truth().labels) == 24


def test_batches_of_dictionaries_and_other_threads_are_seen(tmp_path):
    def in_a_thread(loader):
        found = []
        worker = threading.Thread(
            target=lambda: found.extend(({"x": x, "labels": y} for x, y in reveal(loader)))
        )
        worker.start()
        worker.join()
        return [(one["x"], one["labels"]) for one in found]

    # All batches were loaded ahead: the last one that was offered counts.
    (reply,) = InlineGrid(1, project(watch(), shown=in_a_thread)).send_and_receive(_first(1))
    name = reply.content.config_records[TRUTH_KEY]["name"]
    assert len(TruthFile(store() / f"{name}.safetensors").labels) == 1


def test_a_name_that_is_no_name_reads_no_file(tmp_path):
    (tmp_path / "secret.safetensors").write_bytes(b"x")
    for name in ("../secret", "/etc/passwd", "0" * 31, 7, None, "0" * 32):
        assert find(name) is None


def test_files_that_nobody_takes_do_not_stay(tmp_path):
    def broken(loader):
        for x, y in reveal(loader):
            yield x * float("inf"), y

    audit(project(watch(), shown=broken), tmp_path / "run", LLG(), rounds=1)
    assert {row["status"] for row in rows(tmp_path / "run")} == {"failed"}
    assert list(store().iterdir()) == []


def test_old_files_of_the_store_are_removed_and_those_of_others_stay():
    """FEDSIM_TRUTH may name a folder that holds other things."""
    old = [f"{'a' * 32}.safetensors", f"{'b' * 32}.safetensors.part"]
    others = ["thesis.txt", "weights.safetensors", f"{'c' * 32}.safetensors.bak"]
    folder = store()
    for name in [*old, *others]:
        (folder / name).write_bytes(b"x")
    (folder / "project").mkdir()
    (folder / f"{'d' * 32}.safetensors").mkdir()  # a folder, whatever its name
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    (folder / f"{'e' * 32}.safetensors").write_bytes(b"x")
    left = {"project", f"{'d' * 32}.safetensors", f"{'e' * 32}.safetensors", *others}
    assert {path.name for path in store().iterdir()} == left


def test_attacks_begin_with_the_first_replies():
    curious = HonestButCurious(FedAvg(), adversaries=[LLG()], model=Net)
    with pytest.raises(FedsimError, match="no reply yet"):
        curious.campaign  # noqa: B018 - it raises


def test_a_watched_project_is_diagnosed_with_what_was_seen(tmp_path):
    app = project(watch(), optimizer=torch.optim.AdamW, batch=2, steps=3)
    audit(app, tmp_path / "run", LLG(), rounds=1, record={"keep": "all"})
    with pytest.raises(FedsimError, match=r"fedsim\.diagnose\(\.\.\., model=Net\)"):
        diagnose(tmp_path / "run")
    table = diagnose(tmp_path / "run", [FirstLinear()], model=Net)
    assert list(table["label"]) == ["llg", "first-linear"] * CLIENTS
    assert set(table["steps"]) == {3}
    assert set(table["optimizer"]) == {"adamw"}
