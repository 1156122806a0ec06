"""A SuperNode is lost and started anew; Flower's SuperLink answers in its place meanwhile."""

import pytest
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from support.tiny import rows

from adversaries import LLG
from defenses import TopK
from fedsim import HonestButCurious, defend
from fedsim.engine.inline import InlineGrid
from fedsim.errors import EngineError
from fedsim.federation import client
from fedsim.federation.other_grids import OrderedGrid
from fedsim.tasks.images import Images

pytestmark = pytest.mark.usefixtures("unreported")

TASK = Images(clients=3, model="cnn", seed=5)
OLD, NEW = 52, 7
"""Ids of the node of client 2, before and after its restart."""


def app(*mods, defenses=()):
    made = ClientApp()

    @made.train(mods=[*mods, defend(*defenses, seed=3)])
    def train(message, context):
        module = TASK.module().train()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        number, round = context.node_config["partition-id"], message.content["config"]
        (batch,) = TASK.batches(number, round["server-round"], batch_size=2, steps=1)
        TASK.loss(module, batch.inputs, batch.labels).backward()
        torch.optim.SGD(module.parameters(), lr=0.05).step()
        metrics = MetricRecord({"num-examples": len(batch)})
        content = RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return made


class SuperLink:
    """Flower's Grid, as far as strategies use it, whose node OLD ends with its second message.

    Args:
        clients: The ClientApp of the three nodes.
        notices: Whether a lost node is no longer listed.
    """

    def __init__(self, clients, *, notices=True):
        self._grid, self._notices = InlineGrid(3, clients), notices
        self.nodes = {50: 1000, 51: 1001, OLD: 1002}
        self.asked = 0

    def get_node_ids(self):
        return list(self.nodes)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._reply(message) for message in messages]

    def _reply(self, message):
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = f"message to {node}"
        self.asked += node == OLD
        if node == OLD and self.asked == 2:
            if self._notices:
                del self.nodes[OLD]
            self.nodes[NEW] = 1002
            reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1  # the SuperLink's own
            return reply
        message.metadata.dst_node_id = self.nodes[node]
        (reply,) = self._grid.send_and_receive([message])
        message.metadata.dst_node_id = node
        reply.metadata.__dict__["_src_node_id"] = node
        return reply


def audited(out, grid, rounds=3, **training):
    """Status and error of every label attack, by round and client; "0+1" is a sum."""
    curious = HonestButCurious(
        FedAvg(fraction_evaluate=0.0),
        adversaries=[LLG()],
        task=TASK,
        out=out,
        training={"batch_size": 2, **training},
    )
    curious.start(
        grid=grid,
        initial_arrays=ArrayRecord(TASK.module().state_dict()),
        num_rounds=rounds,
        train_config=ConfigRecord({"lr": 0.05}),
    )
    found = rows(out)
    clients = [int(row["client"]) if row["client"].isdigit() else row["client"] for row in found]
    return {
        (int(row["round"]), client): (row["status"], row["error"])
        for row, client in zip(found, clients, strict=True)
    }


def test_a_node_that_was_started_anew_is_its_client_again(tmp_path):
    found = audited(tmp_path / "audit", SuperLink(app()))
    assert found.pop((2, 2)) == ("failed", "ClientError: Node Unavailable")
    assert {*found.values()} == {("ok", "")}
    assert [client for round, client in found if round == 3] == [0, 1, 2]


def test_under_a_defense_that_remembers_a_node_that_was_started_anew_stays_out(tmp_path):
    def anew(message, context, call_next):
        round = message.content["config"]["server-round"]
        if (round, context.node_config["partition-id"]) == (3, 2):
            context.state.clear()
        return call_next(message, context)

    grid = SuperLink(app(anew, defenses=[TopK(k=0.5, error_feedback=True)]))
    found = audited(tmp_path / "audit", grid, rounds=5)
    assert {key for key, (status, _) in found.items() if status == "failed"} == {
        (round, 2) for round in (2, 3, 4, 5)
    }
    assert "remembers 0 of the 1 rounds" in found[3, 2][1]


def test_a_new_node_is_not_taken_for_a_client_whose_node_is_still_listed(tmp_path):
    found = audited(tmp_path / "audit", SuperLink(app(), notices=False))
    assert found.pop((2, 2))[0] == "failed"
    assert found.pop((3, NEW)) == ("failed", "ClientError: it names client 2, as another node does")
    assert {status for status, _ in found.values()} == {"ok"}
    assert (3, 2) in found


@pytest.mark.parametrize("says", [{}, {"clients": 1.5}, {"clients": [0, 1, 2]}])
def test_a_client_cannot_say_that_its_update_is_a_sum(says, tmp_path):
    def liar(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] == 0:
            reply.content["fedsim.clients"] = ConfigRecord(says)
        return reply

    grid = SuperLink(app(liar))
    found = audited(tmp_path / "audit", grid, rounds=1, secure_aggregation="masked-sum")
    ((key, (status, error)),) = found.items()
    assert (*key, status) == (1, "0+1+2", "failed")
    assert "it is a single update" in error


def trained(grid):
    """Replies of a round of empty training messages."""
    asked = [Message(RecordDict(), node, MessageType.TRAIN) for node in grid.get_node_ids()]
    return list(grid.send_and_receive(asked))


def test_an_ordered_grid_names_the_lost_node_and_takes_the_new_one_in_its_place():
    link = SuperLink(client.app)
    grid = OrderedGrid(link, 3)  # asks each node for its client
    assert grid.clients == {50: 0, 51: 1, OLD: 2}
    lost = trained(grid)[2]
    assert (lost.metadata.src_node_id, lost.error.reason) == (OLD, "Node Unavailable")
    assert grid.get_node_ids() == [50, 51, NEW]
    assert [reply.metadata.src_node_id for reply in trained(grid)] == [50, 51, NEW]


def test_an_ordered_grid_keeps_a_node_that_is_listed():
    grid = OrderedGrid(link := SuperLink(client.app, notices=False), 3)
    trained(grid)
    assert NEW in link.nodes
    assert grid.get_node_ids() == [50, 51, OLD]
    del link.nodes[51]  # another client's place
    assert grid.get_node_ids() == [50, 51, OLD]


def test_a_node_that_is_lost_before_a_run_is_named_with_what_to_do():
    link = SuperLink(client.app)
    link.asked = 1
    with pytest.raises(EngineError, match="Node Unavailable\nA SuperNode that was ended stays"):
        OrderedGrid(link, 3)
