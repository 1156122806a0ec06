"""Grids around a Grid of somebody else's: one that delegates, and one in a fixed order."""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsim.errors import EngineError
from fedsim.federation.senders import by_node


class Through(Grid):
    """Delegates everything to another Grid.

    Attributes:
        clients: The client of each node.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.clients: dict[int, int] = dict(getattr(grid, "clients", {}))

    def set_run(self, run: Any) -> None:
        """Set the run that messages belong to."""
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run that messages belong to."""
        return self._grid.run

    def create_message(self, *args: Any, **settings: Any) -> Message:
        """A message to a node."""
        return self._grid.create_message(*args, **settings)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; returns their ids."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to queued messages, by the ids of those."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to messages; the SuperLink's errors come from the nodes that they are about."""
        messages = list(messages)
        return by_node(messages, self._grid.send_and_receive(messages, timeout=timeout))


class OrderedGrid(Through):
    """Makes a Grid of Flower's deterministic: waits for all nodes, and keeps them in order.

    Flower's node ids are random and unordered, replies arrive in any order, and the server starts
    before all nodes have registered.

    Args:
        grid: The Grid.
        expected: The number of clients.
        patience: Seconds to wait for them.
    """

    def __init__(self, grid: Grid, expected: int, *, patience: float = 120.0) -> None:
        super().__init__(grid)
        deadline = time.monotonic() + patience
        while len(nodes := list(grid.get_node_ids())) < expected:
            if time.monotonic() > deadline:
                raise EngineError(
                    f"{len(nodes)} of {expected} clients connected within {patience:g} s; set "
                    "training.clients to the number of SuperNodes, or start more of them"
                )
            time.sleep(0.2)
        found = self._ask(nodes, patience)
        if sorted(found.values()) != list(range(expected)):
            raise EngineError(
                f"clients {sorted(found.values())} answered, expected 0 to {expected - 1} once each"
            )
        self.clients = dict(sorted(found.items(), key=lambda item: item[1]))
        self._patience, self._seen = patience, set(nodes)

    def _ask(self, nodes: Iterable[int], patience: float) -> dict[int, int]:
        """The client of each node, which only the node knows."""
        asked = [
            Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY)
            for node in nodes
        ]
        found: dict[int, int] = {}
        for reply in super().send_and_receive(asked, timeout=patience):
            if reply.has_error():
                raise EngineError(
                    f"a client does not answer: {reply.error.reason}\nA SuperNode that was ended "
                    "stays listed for about a minute; then start the run again"
                )
            client = reply.content.config_records["client"]["client"]
            found[reply.metadata.src_node_id] = int(str(client))
        return found

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes; in place of a lost one that of a new node with its client."""
        listed = set(self._grid.get_node_ids())
        for node in sorted(listed - self._seen) if self.clients.keys() - listed else ():
            self._seen.add(node)
            with contextlib.suppress(Exception):  # whatever an unknown node answers
                client = self._ask([node], self._patience)[node]
                self.clients = {
                    node if one == client and old not in listed else old: one
                    for old, one in self.clients.items()
                }
        return list(self.clients)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to messages, in the order of the messages."""
        messages = list(messages)
        order = {m.metadata.dst_node_id: place for place, m in enumerate(messages)}
        replies = super().send_and_receive(messages, timeout=timeout)
        return sorted(replies, key=lambda reply: order[reply.metadata.src_node_id])
