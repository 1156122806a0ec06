"""The curious server audits someone's own Flower project, and blames nobody else."""

import random

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from support.tiny import rows, same, weights
from torch import nn

from adversaries import IDLG, LLG, TokenLeak
from defenses import GaussianNoise, Sign
from fedsim import HonestButCurious, attack, defend
from fedsim.attacking.audit import planned
from fedsim.engine.inline import InlineGrid
from fedsim.errors import ClientError, ScenarioError
from fedsim.federation import client
from fedsim.federation.audit_log import LOG
from fedsim.federation.strategies import clients_of
from fedsim.runs.ledger import Ledger
from fedsim.tasks.images import Images

pytestmark = pytest.mark.usefixtures("unreported")


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


@pytest.mark.reported
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


def test_an_adversary_of_another_modality_is_refused_before_any_round(tmp_path):
    attacks, task = [LLG(), TokenLeak()], Images(clients=4)
    with pytest.raises(ScenarioError, match="token-leak attacks texts, and task 'images' has ima"):
        HonestButCurious(FedAvg(), adversaries=attacks, task=task, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


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


def audited(out, *mods, stock=True, clients=4, strategy=FedAvg, on_failure="pass", **training):
    """Rows of an audit of four foreign clients on a Grid that does not know them.

    clients: The number of clients there may be, each of which has data.
    """
    task = Images(clients=clients, model="cnn", seed=5)
    curious = HonestButCurious(
        strategy(fraction_evaluate=0.0),
        adversaries=[LLG()],
        task=task,
        out=out,
        training={"batch_size": 2, **training},
        on_failure=on_failure,
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


def test_examples_are_counted_by_the_metric_that_weights_the_strategy(tmp_path):
    def renamed(message, context, call_next):
        reply = call_next(message, context)
        reply.content["metrics"] = MetricRecord({"size": reply.content["metrics"]["num-examples"]})
        return reply

    def by_size(**settings):
        return FedAvg(weighted_by_key="size", **settings)

    def clipped(**settings):
        inner = by_size(**settings)
        return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 100.0, 4)

    known = audited(tmp_path / "known", defend(), stock=False)
    for number, strategy in enumerate((by_size, clipped)):
        out = tmp_path / f"renamed{number}"
        found = audited(out, renamed, defend(), stock=False, strategy=strategy)
        first = len(known) // 2  # the rows of a round
        assert first
        assert found[:first] == known[:first]
        assert {status for *_, status, _, _ in found} == {"ok"}


def test_a_node_that_does_not_say_is_never_scored_against_somebody_else(tmp_path):
    rows = audited(tmp_path / "audit")
    assert len(rows) == len(audited(tmp_path / "named", defend()))
    assert {status for *_, status, _, _ in rows} == {"failed"}
    assert all("defend()" in error for *_, error in rows)


def test_a_node_that_fails_before_it_says_which_client_it_is_costs_no_other_row(tmp_path):
    def broken(message, context, call_next):
        if context.node_config["partition-id"] == 2:
            raise RuntimeError("no disk")
        return call_next(message, context)

    rows = audited(tmp_path / "audit", broken, defend(), local_epochs=1)
    first = {(client, status) for number, client, _, status, _, _ in rows if number == "1"}
    assert {("0", "ok"), ("1", "ok"), ("3", "ok")} < first
    assert {status for client, status in first if client not in "013"} == {"failed"}
    with pytest.raises(ClientError, match='without such clients: on_failure = "drop"'):
        audited(tmp_path / "stop", broken, defend(), on_failure="stop")


def test_a_node_without_a_name_is_not_taken_for_a_client_that_there_may_be(tmp_path):
    def broken(message, context, call_next):
        if context.node_config["partition-id"] == 1:  # the node of the lowest id
            raise RuntimeError("no disk")
        return call_next(message, context)

    rows = audited(tmp_path / "audit", broken, defend(), clients=6)
    status = {client: status for number, client, _, status, _, _ in rows if number == "1"}
    assert status == {"0": "ok", "2": "ok", "3": "ok", "6": "failed"}


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
    with pytest.raises(ScenarioError, match="give model=, which makes what your clients train"):
        HonestButCurious(FedAvg(), adversaries=[LLG()])


@pytest.mark.parametrize("given", [IDLG(), LLG, "llg", [LLG], ["llg"], [Sign()], iter([LLG()])])
def test_adversaries_are_a_list_of_objects(given, tmp_path):
    with pytest.raises(ScenarioError, match="adversaries: found"):
        HonestButCurious(FedAvg(), given, task=Images(clients=4), out=tmp_path / "audit")
    with pytest.raises(ScenarioError, match="adversaries: found"):
        planned(given)


def test_a_strategy_with_a_training_loop_of_its_own_is_refused():
    class Loop(FedAvg):
        def start(self, *args, **settings):
            return None

    with pytest.raises(TypeError, match="Loop has a training loop"):
        HonestButCurious(Loop(), campaign=object())


def test_two_adversaries_of_a_kind_have_labels_of_their_own(tmp_path):
    curious = HonestButCurious(
        FedAvg(),
        adversaries=[LLG(), LLG(variant="llg*")],
        task=Images(clients=4, model="cnn", seed=5),
        out=tmp_path / "audit",
    )
    assert [label for label, _, _ in curious.campaign._plans] == ["llg", "llg 2"]


def test_where_no_batch_size_is_told_the_truth_is_as_large_as_the_update(tmp_path):
    task = Images(clients=4, model="cnn", seed=5)
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0), adversaries=[LLG()], task=task, out=tmp_path / "audit"
    )
    random.seed(0)
    curious.start(
        grid=InlineGrid(4, foreign_app(task, 0.05)),
        initial_arrays=ArrayRecord(task.module().state_dict()),
        num_rounds=1,
        train_config=ConfigRecord({"lr": 0.05}),
    )
    found = rows(tmp_path / "audit")
    assert {row["batch_size"] for row in found} == {"2"}
    asr = [float(row["value"]) for row in found if row["metric"] == "asr"]
    assert sum(asr) / len(asr) > 0.8


def test_attacks_that_a_strategys_error_leaves_are_named_and_can_be_made(
    tmp_path, monkeypatch, caplog
):
    class Failing(FedAvg):
        def aggregate_train(self, server_round, replies):
            raise RuntimeError("the replies do not go together")

    task, out = Images(clients=2, model="cnn", seed=5), tmp_path / "audit"
    curious = HonestButCurious(
        Failing(fraction_evaluate=0.0), [LLG()], task=task, out=out, training={"batch_size": 2}
    )
    monkeypatch.setattr(LOG, "propagate", True)
    caplog.set_level("WARNING", LOG.name)
    with pytest.raises(RuntimeError, match="do not go together"):
        curious.start(
            grid=InlineGrid(2, foreign_app(task, 0.05)),
            initial_arrays=ArrayRecord(task.module().state_dict()),
            num_rounds=1,
            train_config=ConfigRecord({"lr": 0.05}),
        )
    call = f'fedsim.attack("{out}", adversaries, task=task)'
    assert f"fedsim: attacks that were not made: 2; {call} makes them" in caplog.messages
    assert not rows(out, empty=True)
    attack(out, [LLG()], task=task)
    assert {row["status"] for row in rows(out)} == {"ok"}
