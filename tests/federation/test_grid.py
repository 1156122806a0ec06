"""A Grid of this process knows a million clients without making anything for those not asked."""

import pytest
from flwr.app import Message, RecordDict

from fedsim.engine.inline import InlineGrid
from fedsim.federation.grid import FIRST_NODE, LocalGrid


def test_contexts_are_made_when_they_are_asked_for():
    grid = InlineGrid(10**6)
    assert (len(grid.clients), len(grid.contexts)) == (10**6, 0)
    assert grid.clients[FIRST_NODE + 7] == 7
    config = grid.context(7).node_config
    assert config == {"partition-id": 7, "num-partitions": 10**6}
    assert grid.contexts[FIRST_NODE + 7] is grid.context(7)
    assert len(grid.contexts) == 1
    assert grid.states() == {}, "a client without a state needs no checkpoint"
    for unknown in (FIRST_NODE - 1, FIRST_NODE + 10**6):
        assert unknown not in grid.clients
        with pytest.raises(KeyError):
            grid.contexts[unknown]


def test_a_message_that_waits_is_not_lost_to_one_that_is_pushed_later():
    class Echo(LocalGrid):
        def exchange(self, messages):
            return [Message(RecordDict(), reply_to=one) for one in messages]

    grid = Echo(3)
    asked = [Message(RecordDict(), FIRST_NODE + client, "train") for client in range(3)]
    first, second = grid.push_messages(asked[:2])
    replies = list(grid.pull_messages([first]))
    (third,) = grid.push_messages(asked[2:])
    replies += [*grid.pull_messages([second]), *grid.pull_messages([third])]
    nodes = [one.metadata.src_node_id for one in replies]
    assert nodes == [FIRST_NODE, FIRST_NODE + 1, FIRST_NODE + 2]
