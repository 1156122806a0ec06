"""A Grid of this process knows a million clients without making anything for those not asked."""

import pytest

from fedsim.engine.inline import InlineGrid
from fedsim.federation.grid import FIRST_NODE


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
