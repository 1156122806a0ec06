"""What clients reveal is tied to their updates, and what they do not reveal is not made up."""

import json
import os
import random
import shutil
import stat
import warnings

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows, timeless
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from adversaries import LLG, Accumulate
from fedsim import HonestButCurious, defend, load, reveal, watch
from fedsim.attacking.modalities import revealed_task
from fedsim.engine.inline import InlineGrid
from fedsim.errors import FedsimError, RunFolderError, ScenarioError
from fedsim.federation.project import MOST_BYTES
from fedsim.federation.watching import TRUTH_KEY
from fedsim.records import Truth
from fedsim.runs.truth import Origin, Seen, TruthFile
from fedsim.runs.truth_store import find, move, store, write

pytestmark = pytest.mark.usefixtures("unreported")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 16)
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x.flatten(1))))


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "store"))


def batches(client):
    rng = torch.Generator().manual_seed(client)
    examples = torch.rand(8, 1, 8, 8, generator=rng), torch.randint(4, (8,), generator=rng)
    return DataLoader(TensorDataset(*examples), batch_size=4)


def plain(client, net, loader, round):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def project(*mods, train=plain):
    app = ClientApp()

    @app.train(mods=list(mods))
    def run(message, context):
        net, client = Net().train(), int(context.node_config["partition-id"])
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train(client, net, batches(client), message.content["config"]["server-round"])
        arrays, metrics = ArrayRecord(net.state_dict()), MetricRecord({"num-examples": 8})
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    return app


def audit(app, out, *adversaries, clients=3, rounds=1, **settings):
    torch.manual_seed(3)
    random.seed(3)
    strategy = HonestButCurious(
        FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1),
        adversaries=adversaries or [LLG()],
        model=Net,
        out=out,
        **settings,
    )
    initial = ArrayRecord(Net().state_dict())
    strategy.start(grid=InlineGrid(clients, app), initial_arrays=initial, num_rounds=rounds)
    return rows(out)


def by_client(found, *columns):
    return {int(row["client"]): tuple(row[each] for each in columns) for row in found}


def named(reply):
    return reply.content.config_records[TRUTH_KEY]["name"]


def after(change):
    """A mod around `watch` that changes a client's reply: change(client, reply)."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        change(int(context.node_config["partition-id"]), reply)
        return reply

    return mod


def test_a_file_belongs_to_one_update(tmp_path):
    """Client 1 names a copy of another's file, 2 a broken one, 3 lies, and 4's arrays changed."""

    def change(client, reply):
        path = store() / f"{named(reply)}.safetensors"
        if client == 1:
            file = find(named(reply))
            another = file.seen.model_copy(update={"node": file.seen.node + 1})
            write("a" * 32, another, file.tensors())
            reply.content[TRUTH_KEY] = ConfigRecord({"name": "a" * 32})
        if client == 2:
            path.write_bytes(b"junk")
        if client == 3:
            file = find(named(reply))
            write(named(reply), file.seen.model_copy(update={"sizes": (10**6, 8)}), file.tensors())
        if client == 4:
            arrays = reply.content["model"].to_torch_state_dict()
            arrays["out.bias"] = arrays["out.bias"] + 1.0
            reply.content["model"] = ArrayRecord(arrays)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = audit(project(after(change), watch()), tmp_path / "run", clients=5)
    assert by_client(found, "status", "truth") == {
        0: ("ok", "revealed"),
        1: ("ok", "absent"),
        2: ("ok", "absent"),
        3: ("ok", "absent"),
        4: ("ok", "revealed"),
    }
    checked = {client: text for client, (text,) in by_client(found, "checked").items()}
    assert checked[0] == "fits"
    assert checked[4].startswith("not checked: the update is not what the training function")
    text = "\n".join(str(one.message) for one in said)
    for part in ("client 1, round 1: its file is of another", "client 2, round 1", "cannot be: 10"):
        assert part in text
    # The file of client 1 itself, which it did not name, is left for a day.
    assert len(list(store().iterdir())) == 1


def test_a_defense_is_no_change_by_something_else(tmp_path):
    from defenses import GaussianNoise

    found = audit(project(defend(GaussianNoise(sigma=0.1)), watch()), tmp_path / "run", clients=1)
    assert by_client(found, "checked") == {0: ("fits",)}


def test_examples_can_be_read_by_their_user_alone(tmp_path):
    os.umask(0o000)
    try:
        audit(project(watch()), tmp_path / "run", clients=1)
    finally:
        os.umask(0o022)
    kept = tmp_path / "run/truth"
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (kept, *kept.iterdir())]
    assert modes == [0o700, 0o600]
    (tmp_path / "store").chmod(0o777)
    with pytest.raises(RunFolderError, match="others can write to"):
        store()


def test_a_full_store_costs_the_truth_and_not_the_training(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o777)  # refused, as a full disk is
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        audit(project(watch()), tmp_path / "run", clients=1, example=next(iter(batches(0))))
    assert any("cannot be scored" in str(one.message) for one in said)
    assert {row["truth"] for row in rows(tmp_path / "run")} == {"absent"}


def test_inputs_beyond_the_runs_limit_are_left_out(tmp_path):
    assert MOST_BYTES == 2 * 2**30
    tensors = {"inputs.0": torch.rand(2, 4), "labels.0": torch.tensor([0, 1])}
    write("b" * 32, Seen(sizes=(2,)), tensors)
    file = find("b" * 32)
    moved = move(file, tmp_path / "run/truth/r0001-c0000.safetensors", file.seen, inputs=False)
    assert moved.seen.partial
    assert moved.truth().inputs is None
    assert moved.truth().labels.tolist() == [0, 1]


def test_what_no_client_could_have_seen_is_refused(tmp_path):
    for wrong in ({"steps": -1}, {"lr": 1e20}, {"momentum": 1.0}, {"sizes": (10**9,)}):
        write("c" * 32, Seen.model_construct(**{**dict(Seen()), **wrong}), {})
        with pytest.raises(RunFolderError, match="cannot be read"):
            find("c" * 32)


def test_each_client_has_its_own_settings(tmp_path):
    """Client 1 is not watched, and 2 forgets `reveal`; nobody stated how they train."""

    def train(client, net, loader, round):
        if client == 0:
            plain(client, net, loader, round)
            return
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        for x, y in loader:
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    def some(message, context, call_next):
        if context.node_config["partition-id"] == 1:
            return call_next(message, context)
        return watch()(message, context, call_next)

    def settings():
        return {
            one.clients[0]: (one.update.optimizer, one.update.lr, one.update.num_examples)
            for one in load(tmp_path / "run").recording()
        }

    app = project(defend(), some, train=train)
    found = audit(app, tmp_path / "run", record={"keep": "all"}, threat={"grants": "white-box"})
    assert settings() == {0: ("sgd", 0.1, 8), 1: ("unknown", None, 8), 2: ("adam", 0.01, 8)}
    assert by_client(found, "local_steps", "batch_size", "truth") == {
        0: ("2", "4", "revealed"),
        1: ("", "", "absent"),
        2: ("2", "4", "absent"),
    }
    told = json.loads((tmp_path / "run/provenance.json").read_text())
    assert told["optimizer"] == "unknown"  # they differ
    assert "training.lr" in told["unknown"]
    assert told["observed"] == [
        "training.algorithm", "training.local_steps", "training.momentum", "training.weight_decay",
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "run")
    stated = {"optimizer": "adam", "lr": 0.5}
    audit(app, tmp_path / "run", record={"keep": "all"}, training=stated)
    assert settings() == {0: ("sgd", 0.1, 8), 1: ("adam", 0.5, 8), 2: ("adam", 0.01, 8)}


def test_history_keeps_what_it_scores_until_the_end(tmp_path):
    grants = ["GRADIENT", "MODEL", "LABELS", "BATCH_SIZE", "LEARNING_RATE", "LOCAL_STEPS"]
    threat = {"grants": [*grants, "HISTORY"], "victims": 1}
    found = audit(
        project(watch()),
        tmp_path / "run",
        Accumulate(claims_from="first-linear"),
        rounds=3,
        threat=threat,
    )
    assert {row["status"] for row in found} == {"ok"}
    attacked = {(int(row["round"]), int(row["client"])) for row in found}
    needed = {(r, c) for last, c in attacked for r in range(1, last + 1)}
    assert len(needed) > len(attacked)  # of earlier rounds, too
    kept = {(int(p.name[1:5]), int(p.name[7:11])) for p in (tmp_path / "run/truth").iterdir()}
    assert kept == needed


def test_the_first_example_may_come_late(tmp_path):
    def train(client, net, loader, round):
        if round == 2:
            plain(client, net, loader, round)

    with pytest.warns(UserWarning, match="no client of round 1 revealed an example"):
        found = audit(project(defend(), watch(), train=train), tmp_path / "run", rounds=2)
    assert {(row["round"], row["truth"]) for row in found} == {("2", "revealed")}


def test_clients_that_all_fail_are_not_told_to_reveal_examples(tmp_path):
    def train(client, net, loader, round):
        if round == 1:
            raise RuntimeError("no data today")
        plain(client, net, loader, round)

    with pytest.warns(UserWarning, match=r"all clients of round 1 failed.*Waiting for a later"):
        found = audit(project(defend(), watch(), train=train), tmp_path / "run", rounds=2)
    assert {row["round"] for row in found} == {"2"}


def test_without_any_example_the_federation_trains_and_says_so(tmp_path):
    def train(client, net, loader, round):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in loader:
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()

    silent = project(defend(), train=train)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(FileNotFoundError):
            audit(silent, tmp_path / "run")
    assert any("nothing was attacked" in str(one.message) for one in said)
    found = audit(silent, tmp_path / "run", example=next(iter(batches(0))))
    assert {(row["status"], row["truth"], row["value"]) for row in found} == {("ok", "absent", "")}


@pytest.mark.reported
def test_attacks_can_wait_until_training_is_done(tmp_path, caplog):
    """Rows are the same; with `defer`, no attack is made before the last round."""
    done, rounds = [], {}

    class Noting(LLG):
        def reconstruct(self, seen, job):
            done.append(caplog.text.count("aggregate_train"))
            return super().reconstruct(seen, job)

    caplog.set_level("INFO", logger="flwr")
    for name, more in (("now", {}), ("later", {"defer": True}), ("some", {"budget_s": 0.0})):
        caplog.clear()
        audit(project(watch()), tmp_path / name, Noting(), clients=2, rounds=3, **more)
        rounds[name], done[:] = {*done}, []
    assert rounds == {"now": {1, 2, 3}, "later": {3}, "some": {3}}
    now, later, some = (timeless(tmp_path / name) for name in ("now", "later", "some"))
    assert now == later == some
    assert "fedsim: llg: " in caplog.text
    assert str(tmp_path / "some/report.html") in caplog.text
    with pytest.raises(ScenarioError, match="budget_s is -1"):
        HonestButCurious(FedAvg(), model=Net, out=tmp_path / "run", budget_s=-1.0)


def test_files_go_when_the_first_round_cannot_be_attacked(tmp_path):
    class Sideways(Net):
        def forward(self, x):
            return super().forward(x[..., :5])

    strategy = HonestButCurious(FedAvg(), adversaries=[LLG()], model=Sideways, out=tmp_path / "run")
    initial = ArrayRecord(Net().state_dict())
    with pytest.raises(FedsimError, match="cannot take the clients' inputs"):
        strategy.start(grid=InlineGrid(3, project(watch())), initial_arrays=initial, num_rounds=1)
    assert not list(store().iterdir())


def test_guesses_are_of_other_clients(tmp_path):
    task = revealed_task(Net, torch.rand(1, 8, 8), clients=2)
    for client in range(2):
        shade = torch.full((1, 1, 8, 8), float(client))
        tensors = {"inputs.0": shade, "labels.0": torch.tensor([client])}
        write("d" * 32, Seen(**dict(Origin()), sizes=(1,)), tensors)
        task.add(client, 1, TruthFile(store() / f"{'d' * 32}.safetensors"))
    later = Truth(inputs=[torch.rand(1, 8, 8)] * 3, labels=torch.tensor([0, 1, 2]))
    for informed in (False, True):
        rng = torch.Generator().manual_seed(0)
        guess = task.guess(later, rng, informed=informed, clients=(0,))
        assert {float(one.mean()) for one in guess.inputs} == {1.0}
