"""The curious server changes nothing, refuses broken updates, and loses no row over them."""

import random
from collections import Counter

import flwr.serverapp.strategy as flower_strategies
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import FedAvg
from rogues import Historian, Vandal
from safetensors.torch import load_file
from tiny import (
    ask,
    config,
    faulty,
    initial,
    meaning,
    reseeding,
    rows,
    same,
    scenario,
    sent,
    weights,
)
from torch import nn

from adversaries import LLG
from defenses import GaussianNoise
from fedsim import HonestButCurious, client, defend
from fedsim.attack import Bench
from fedsim.campaign import Campaign, InlineExecutor
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, ScenarioError, UpdateRefused
from fedsim.ledger import Ledger
from fedsim.seeds import isolated
from fedsim.server import read_update
from fedsim.settings import Training
from fedsim.simulation import simulate
from fedsim.strategies import FedSGD, Following, build_strategy, clients_of, strategy_names
from fedsim.tasks.images import Images

pytestmark = pytest.mark.usefixtures("rogues")

# --- honest: bit-identical to the strategy alone ----------------------------------------------

DP = "DifferentialPrivacy"
SETTINGS = {
    "Bulyan": {},
    f"{DP}ClientSideAdaptiveClipping": {"noise_multiplier": 0.1, "clipped_count_stddev": 0.5},
    f"{DP}ClientSideFixedClipping": {"noise_multiplier": 0.1, "clipping_norm": 0.1},
    f"{DP}ServerSideAdaptiveClipping": {"noise_multiplier": 0.1, "clipped_count_stddev": 0.5},
    f"{DP}ServerSideFixedClipping": {"noise_multiplier": 0.1, "clipping_norm": 0.1},
    "FedAdagrad": {},
    "FedAdam": {},
    "FedAvg": {},
    "FedAvgM": {"server_momentum": 0.9},
    "FedMedian": {},
    "FedProx": {"proximal_mu": 0.5},
    "FedSGD": {},
    "FedTrimmedAvg": {},
    "FedYogi": {},
    "Krum": {"num_malicious_nodes": 1},
    "MultiKrum": {"num_malicious_nodes": 1, "num_nodes_to_select": 3},
    "QFedAvg": {},
}
MODS = {
    f"{DP}ClientSideAdaptiveClipping": adaptiveclipping_mod,
    f"{DP}ClientSideFixedClipping": fixedclipping_mod,
}
CANNOT_TRAIN = {"FedXgbBagging", "FedXgbCyclic"}
"""They put gradient-boosted trees together, which come as bytes; ours are arrays of weights."""


def app_for(name: str) -> ClientApp:
    """fedsim's client, with the mod that a client-side strategy of Flower's asks for."""
    if name not in MODS:
        return client.app
    app = ClientApp()
    app.train(mods=[MODS[name]])(client.train)
    return app


def test_every_strategy_of_flower_is_tried_or_known_not_to_train_a_network():
    flower = {name for name in flower_strategies.__all__ if name not in ("Strategy", "Result")}
    assert flower - set(strategy_names()) == CANNOT_TRAIN
    assert set(SETTINGS) == set(strategy_names()) == (flower - CANNOT_TRAIN) | {"FedSGD"}


@pytest.mark.parametrize("name", strategy_names())
def test_training_is_bit_identical_with_and_without_adversaries(name, tmp_path, monkeypatch):
    # Flower's QFedAvg collects garbage at every reply, for half a second each in a test session.
    monkeypatch.setattr("gc.collect", lambda *_: 0)
    run = scenario(
        training={
            "algorithm": "fedsgd" if name == "FedSGD" else "fedavg",
            "strategy": {"name": name, **SETTINGS[name]},
            "clients_per_round": 5,
            "evaluate_clients": 0 if name in MODS else 2,
            "rounds": 3,
        },
        threat={"grants": "full"},
        adversaries=[{"name": "vandal"}, {"name": "llg"}],
    )

    def trained(curious):
        strategy = build_strategy(run)
        if curious:
            campaign = Campaign(run, Ledger.create(tmp_path, run), InlineExecutor(Bench(run)))
            strategy = HonestButCurious(strategy, campaign=campaign)
        result = strategy.start(
            grid=InlineGrid(run.training.clients, app_for(name)),
            initial_arrays=initial(run),
            num_rounds=run.training.rounds,
            train_config=config(run),
            evaluate_config=config(run),
            evaluate_fn=reseeding(run),
        )
        drawn = (random.random(), np.random.rand(), float(torch.rand(())))
        return result, drawn

    (alone, drawn_alone), (wrapped, drawn_wrapped) = trained(False), trained(True)
    assert same(weights(wrapped.arrays), weights(alone.arrays))
    assert not same(weights(wrapped.arrays), weights(initial(run)))
    assert all(torch.isfinite(value).all() for value in weights(wrapped.arrays).values())
    assert wrapped.train_metrics_clientapp == alone.train_metrics_clientapp
    assert wrapped.evaluate_metrics_clientapp == alone.evaluate_metrics_clientapp
    assert drawn_wrapped == drawn_alone
    assert Counter(row["status"] for row in rows(tmp_path)) == {"ok": 3 * 5 * (6 + 8)}


def test_buffers_are_left_alone_too(tmp_path):
    run = scenario(
        task={"model": "resnet20"},
        training={"clients": 2, "clients_per_round": 2, "rounds": 2},
        threat={"grants": "full"},
        adversaries=[{"name": "vandal"}],
    )
    quiet = run.model_copy(update={"adversaries": []})
    simulate(run, tmp_path / "attacked")
    simulate(quiet, tmp_path / "alone")
    final = "checkpoint/global.safetensors"
    attacked = load_file(tmp_path / "attacked" / final)
    assert same(attacked, load_file(tmp_path / "alone" / final))
    assert any("running_mean" in name for name in attacked)
    assert {row["status"] for row in rows(tmp_path / "attacked")} == {"ok"}


def test_server_side_privacy_is_not_offered_for_gradients():
    # Flower's wrappers clip what a reply adds to the weights; a gradient is no such reply.
    for name in MODS | SETTINGS:
        if name.startswith(DP):
            run = scenario(training={"strategy": {"name": name, **SETTINGS[name]}})
            with pytest.raises(ScenarioError, match="fedsgd"):
                build_strategy(run)


# --- FedSGD -----------------------------------------------------------------------------------


def test_fedsgd_is_one_step_along_the_mean_gradient_weighted_by_examples():
    before = {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([10.0])}
    gradients = [
        ({"w": torch.tensor([1.0, 0.0]), "mean": torch.tensor([1.0])}, 1),
        ({"w": torch.tensor([0.0, 4.0]), "mean": torch.tensor([5.0])}, 3),
    ]
    strategy = FedSGD(lr=0.5, buffers=["mean"])
    grid = InlineGrid(2)
    asked = strategy.configure_train(1, ArrayRecord(before), ConfigRecord(), grid)
    replies = [
        Message(
            RecordDict({"a": ArrayRecord(arrays), "m": MetricRecord({"num-examples": examples})}),
            reply_to=message,
        )
        for message, (arrays, examples) in zip(asked, gradients, strict=True)
    ]
    after, _ = strategy.aggregate_train(1, replies)
    assert after.to_torch_state_dict()["w"].tolist() == [1 - 0.5 * 0.25, 2 - 0.5 * 3]
    assert after.to_torch_state_dict()["mean"].tolist() == [4.0]


def test_fedsgd_without_replies_keeps_the_weights():
    strategy = FedSGD()
    strategy.configure_train(1, ArrayRecord({"w": torch.ones(1)}), ConfigRecord(), InlineGrid(2))
    assert strategy.aggregate_train(1, [])[0] is None


def test_one_round_of_fedsgd_equals_a_step_of_torch_on_all_batches(tmp_path):
    run = scenario(training={"rounds": 1, "clients_per_round": 6}, adversaries=[])
    simulate(run, tmp_path)
    task = run.build_task()
    module = task.module().train()
    optimizer = torch.optim.SGD(module.parameters(), lr=run.training.lr)
    batches = [task.batches(c, 1, batch_size=4, steps=1)[0] for c in range(6)]
    loss = task.loss(
        module, torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
    )
    loss.backward()
    optimizer.step()
    final = load_file(tmp_path / "checkpoint/global.safetensors")
    for name, value in module.named_parameters():
        torch.testing.assert_close(final[name], value.detach(), rtol=1e-5, atol=1e-6)


# --- someone's own Flower project -------------------------------------------------------------


def foreign_app(task: Images, lr: float, *mods) -> ClientApp:
    """A ClientApp that knows nothing of fedsim: it loads, trains one step, sends its weights."""
    app = ClientApp()

    @app.train(mods=list(mods))
    def train(message, context):
        module = task.module().train()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number = int(context.node_config["partition-id"])
        round = int(message.content["config"]["server-round"])
        (batch,) = task.batches(number, round, batch_size=2, steps=1)
        loss = nn.functional.cross_entropy(module(batch.inputs), batch.labels)
        loss.backward()
        torch.optim.SGD(module.parameters(), lr=lr).step()
        metrics = MetricRecord({"num-examples": len(batch)})
        arrays = ArrayRecord(module.state_dict())
        return Message(RecordDict({"model": arrays, "metrics": metrics}), reply_to=message)

    return app


@pytest.mark.parametrize("model", ["cnn", "resnet20"])
def test_two_lines_audit_a_foreign_project(model, tmp_path):
    task = Images(clients=4, model=model, seed=5)

    def strategy():
        return FedAvg(fraction_evaluate=0.0)

    def trained(strategy, *mods):
        random.seed(0)
        return strategy.start(
            grid=InlineGrid(4, foreign_app(task, 0.05, *mods)),
            initial_arrays=ArrayRecord(task.module().state_dict()),
            num_rounds=2,
            train_config=ConfigRecord({"lr": 0.05}),
        )

    curious = HonestButCurious(
        strategy(),
        adversaries=[LLG()],
        task=task,
        out=tmp_path / "audit",
        training={"batch_size": 2},
    )
    wrapped, alone = trained(curious), trained(strategy())
    assert same(weights(wrapped.arrays), weights(alone.arrays))
    found = rows(tmp_path / "audit")
    assert {row["status"] for row in found} == {"ok"}, {row["error"] for row in found}
    assert {row["client"] for row in found} == {"0", "1", "2", "3"}
    asr = [float(row["value"]) for row in found if row["metric"] == "asr"]
    assert len(asr) == 2 * 4
    assert sum(asr) / len(asr) > 0.8  # LLG on two examples and sigmoids or ReLU
    assert (tmp_path / "audit" / "report.html").exists()

    noisy = HonestButCurious(
        strategy(),
        adversaries=[LLG()],
        task=task,
        out=tmp_path / "noisy",
        training={"batch_size": 2},
    )
    protected = trained(noisy, client.defend(GaussianNoise(sigma=0.5)))
    assert not same(weights(protected.arrays), weights(alone.arrays))
    noise = [float(row["value"]) for row in rows(tmp_path / "noisy") if row["metric"] == "asr"]
    assert sum(noise) < sum(asr)


def test_clients_of_a_foreign_grid_are_numbered_by_the_rank_of_their_node():
    class Stock:
        def get_node_ids(self):
            return {7000, 12, 345}

    assert clients_of(Stock()) == {12: 0, 345: 1, 7000: 2}
    assert clients_of(InlineGrid(3)) == {1000: 0, 1001: 1, 1002: 2}


class StockGrid:
    """A Grid that, like Flower's own, has node ids in no order and knows no client numbers."""

    def __init__(self, grid):
        self._grid = grid
        self._ids = {node: (node * 7919) % 10007 for node in grid.get_node_ids()}
        self._nodes = {told: node for node, told in self._ids.items()}

    def get_node_ids(self):
        return set(self._nodes)

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            message.metadata.dst_node_id = self._nodes[message.metadata.dst_node_id]
        replies = list(self._grid.send_and_receive(messages))
        for reply in replies:
            reply.metadata.__dict__["_src_node_id"] = self._ids[reply.metadata.src_node_id]
        return replies


def audited(out, *mods, stock=True):
    """Rows of an audit of four foreign clients on a Grid that does not know them."""
    task = Images(clients=4, model="cnn", seed=5)
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=[LLG()],
        task=task,
        out=out,
        training={"batch_size": 2},
    )
    grid = InlineGrid(4, foreign_app(task, 0.05, *mods))
    random.seed(0)
    curious.start(
        grid=StockGrid(grid) if stock else grid,
        initial_arrays=ArrayRecord(task.module().state_dict()),
        num_rounds=2,
        train_config=ConfigRecord({"lr": 0.05}),
    )
    return [
        (r["round"], r["client"], r["metric"], r["status"], _rounded(r["value"]), r["error"])
        for r in Ledger(out).rows()
    ]


def _rounded(value):
    """A gradient read off new weights is rounded otherwise than one that was sent as such."""
    return value and round(float(value), 6)


def test_a_node_that_says_which_client_it_is_is_scored_against_its_own_examples(tmp_path):
    known = audited(tmp_path / "known", defend(), stock=False)
    assert {status for *_, status, _, _ in known} == {"ok"}
    assert audited(tmp_path / "stock", defend()) == known


def test_a_node_that_does_not_say_is_never_scored_against_somebody_else(tmp_path):
    rows = audited(tmp_path / "audit")
    assert len(rows) == len(audited(tmp_path / "named", defend()))
    assert {status for *_, status, _, _ in rows} == {"failed"}
    assert all("defend()" in error for *_, error in rows)


def test_two_nodes_that_claim_one_client_cost_no_row(tmp_path):
    def liar(message, context, call_next):
        reply = call_next(message, context)
        reply.content[client.CLIENT_KEY] = ConfigRecord({"client": 1})
        return reply

    rows = audited(tmp_path / "audit", liar)
    first = [row for row in rows if row[0] == "1"]
    assert {client: status for _, client, _, status, _, _ in first}.get("1") == "ok"
    assert sum(status == "failed" for _, _, _, status, _, _ in first) == len(first) * 3 // 4


def test_adversaries_without_a_task_are_refused():
    with pytest.raises(ScenarioError, match="task is missing"):
        HonestButCurious(FedAvg(), adversaries=[LLG()])


def test_a_strategy_with_a_training_loop_of_its_own_is_refused():
    class Loop(FedAvg):
        def start(self, *args, **settings):
            return None

    with pytest.raises(TypeError, match="Loop has a training loop"):
        HonestButCurious(Loop(), campaign=object())


def test_the_wrapper_answers_for_the_strategy_inside():
    wrapper = Following(FedAvg(min_train_nodes=7), [1])
    assert wrapper.min_train_nodes == 7
    with pytest.raises(AttributeError):
        _ = wrapper.no_such_thing


# --- reading replies --------------------------------------------------------------------------


@pytest.fixture
def reply():
    """A good reply of client 0."""
    run = scenario()
    return ask(InlineGrid(6), run, 0)


def test_a_reply_says_what_its_arrays_mean(reply):
    update = read_update(reply, ConfigRecord(), Training())
    assert (update.kind, update.num_examples, update.steps, update.lr) == ("gradient", 4, 1, 0.1)
    assert same(update.tensors, sent(reply))


def test_an_error_is_passed_on_with_its_reason(reply):
    broken = Message(Error(code=2, reason="out of memory"), reply_to=reply)
    with pytest.raises(ClientError, match="out of memory"):
        read_update(broken, ConfigRecord(), Training())


def test_two_array_records_are_refused(reply):
    reply.content["more"] = ArrayRecord({"w": torch.ones(1)})
    with pytest.raises(UpdateRefused, match="2 array records"):
        read_update(reply, ConfigRecord(), Training())


@pytest.mark.parametrize(
    "array",
    [
        Array("float32", (2,), "numpy.ndarray", b"\x80rubbish"),
        Array("float32", (2,), "torch.Tensor", b""),
        Array("float32", (2,), "numpy.ndarray", b"cos\nsystem\n(S'true'\ntR."),
    ],
)
def test_arrays_that_cannot_be_read_are_refused(reply, array):
    reply.content["arrays"] = ArrayRecord({"w": array})
    with pytest.raises(UpdateRefused, match="cannot be read"):
        read_update(reply, ConfigRecord(), Training())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "hessian"),
        ("steps", "many"),
        ("lr", "fast"),
        ("buffers", ["no.such.array"]),
        ("buffers", 3),
        ("momentum", [1.0]),
        ("num_examples", None),
    ],
)
def test_broken_metadata_is_refused(reply, key, value):
    told = meaning(reply)
    told.pop(key)
    if value is not None:
        told[key] = value
    reply.content[client.UPDATE_KEY] = ConfigRecord(told)
    with pytest.raises(UpdateRefused, match="broken"):
        read_update(reply, ConfigRecord(), Training())


def test_a_foreign_reply_is_read_as_weights_with_the_rate_that_was_told(reply):
    del reply.content[client.UPDATE_KEY]
    update = read_update(reply, ConfigRecord({"learning-rate": 0.3}), Training())
    assert (update.kind, update.lr, update.num_examples) == ("weights", 0.3, 4)
    assert read_update(reply, ConfigRecord({"lr": "adaptive"}), Training()).lr is None
    stated = Training(lr=0.7, momentum=0.9, local_steps=3, batch_size=5)
    update = read_update(reply, ConfigRecord(), stated)
    assert (update.lr, update.momentum, update.steps, update.num_examples) == (0.7, 0.9, 3, 15)


def test_a_foreign_reply_with_a_broken_number_of_examples_is_refused(reply):
    del reply.content[client.UPDATE_KEY]
    reply.content["metrics"] = MetricRecord({"num-examples": [1, 2]})
    with pytest.raises(UpdateRefused, match="num-examples"):
        read_update(reply, ConfigRecord(), Training())


# --- clients that fail ------------------------------------------------------------------------

WAYS = ["raise", "nan", "inf", "missing", "extra", "shape", "huge"]
SAID = {
    "raise": "the client fell over",
    "nan": "1 NaN or Inf",
    "inf": "1 NaN or Inf",
    "missing": "missing",
    "extra": "stowaway",
    "shape": "has shape",
    "huge": "1e+15",
}


def outcome(run, folder):
    """Statuses of all rows of (round, client)."""
    found = {}
    for row in rows(folder):
        found.setdefault((int(row["round"]), int(row["client"])), []).append(row)
    return found


@pytest.mark.parametrize("how", WAYS)
def test_stop_names_the_client_and_the_round_and_keeps_every_row(how, tmp_path):
    run = faulty(how, adversaries=[{"name": "llg"}, {"name": "idlg"}])
    with pytest.raises(ClientError) as raised:
        simulate(run, tmp_path)
    message = str(raised.value)
    assert "round 2: 1 of 6 clients failed" in message
    assert "client 2:" in message
    assert SAID[how] in message
    assert "training.on_failure" in message
    found = outcome(run, tmp_path)
    assert set(found) == {(round, number) for round in (1, 2) for number in range(6)}
    for place, attacks in found.items():
        assert len(attacks) == 8 + 7  # metrics of each adversary
        assert {row["status"] for row in attacks} == {"failed" if place == (2, 2) else "ok"}
    broken = found[(2, 2)]
    assert all(SAID[how] in row["error"] and row["value"] == "" for row in broken)
    assert all(row["baseline"] for row in broken)
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize("how", WAYS)
def test_drop_finishes_with_the_others(how, tmp_path):
    run = faulty(how, training={"on_failure": "drop", "rounds": 3})
    simulate(run, tmp_path)
    found = outcome(run, tmp_path)
    assert len(found) == 3 * 6
    failed = {place for place, attacks in found.items() if attacks[0]["status"] != "ok"}
    assert failed == {(2, 2)}
    accuracy = [row for row in rows(tmp_path, "utility.csv") if row["metric"] == "accuracy"]
    assert len(accuracy) == 4
    final = load_file(tmp_path / "checkpoint/global.safetensors")
    assert all(torch.isfinite(value).all() for value in final.values())


@pytest.mark.parametrize("how", ["raise", "nan", "huge"])
def test_pass_leaves_the_strategy_alone(how, tmp_path):
    run = faulty(how, training={"algorithm": "fedavg"})

    def trained(strategy):
        return strategy.start(
            grid=InlineGrid(6),
            initial_arrays=initial(run),
            num_rounds=2,
            train_config=config(run),
            evaluate_fn=reseeding(run),
        )

    ledger = Ledger.create(tmp_path, run)
    campaign = Campaign(run, ledger, InlineExecutor(Bench(run)))
    wrapped = trained(HonestButCurious(build_strategy(run), campaign=campaign))
    assert same(weights(wrapped.arrays), weights(trained(build_strategy(run)).arrays))
    assert Counter(row["status"] for row in rows(tmp_path)) == {"ok": 11 * 8, "failed": 8}


def test_all_clients_failing_is_an_error_and_no_crash(tmp_path):
    run = faulty("raise", training={"clients": 3, "clients_per_round": 3, "rounds": 2})
    run = run.model_copy(
        update={"training": run.training.model_copy(update={"on_failure": "drop"})}
    )
    simulate(run, tmp_path)
    assert {row["client"] for row in rows(tmp_path) if row["status"] == "failed"} == {"2"}


# --- following a victim -----------------------------------------------------------------------


class Sampled(FedAvg):
    """Remembers who was asked."""


def test_a_followed_client_takes_part_every_round_and_the_number_stays():
    grid = InlineGrid(20)
    strategy = Following(
        FedAvg(fraction_train=0.2, fraction_evaluate=0.0, min_available_nodes=20), [3, 11]
    )
    taking_part = []
    for round in range(1, 21):
        random.seed(round)
        messages = strategy.configure_train(
            round, ArrayRecord({"w": torch.ones(1)}), ConfigRecord(), grid
        )
        taking_part.append([grid.clients[m.metadata.dst_node_id] for m in messages])
    assert all({3, 11} <= set(asked) for asked in taking_part)
    assert all(len(set(asked)) == len(asked) == 4 for asked in taking_part)
    others = {number for asked in taking_part for number in asked}
    assert len(others) > 10


def test_what_was_seen_of_a_followed_client_adds_up(tmp_path):
    run = scenario(
        training={"rounds": 4, "clients_per_round": 2},
        threat={"grants": ["HISTORY", "HEAD_GRADIENT"], "follow": [5], "victims": [5]},
        adversaries=[{"name": "historian"}],
    )
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == [0, 1, 2, 3]
    found = [row for row in rows(tmp_path) if row["metric"] == "asr"]
    assert [(row["round"], row["client"]) for row in found] == [(str(i), "5") for i in range(1, 5)]
    assert {row["inclusion"] for row in found} == {"1.0"}


def test_without_the_grant_history_stays_unseen(tmp_path):
    run = scenario(adversaries=[{"name": "historian"}], threat={"grants": "auxiliary"})
    Historian.lengths.clear()
    simulate(run, tmp_path)
    assert Historian.lengths == []
    assert {row["status"] for row in rows(tmp_path)} == {"denied"}


def test_the_vandal_really_does_damage():
    from fedsim import testing

    seen = testing.example(2)
    weight = next(seen.model.module.parameters())
    with isolated(0, "vandal"):
        Vandal().reconstruct(seen, testing.job())
    assert not seen.gradient
    assert bool((weight == 7).all())
