"""Grids, which carry messages between server and clients, and what replies say of their arrays."""

import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import (
    Context,
    Error,
    Message,
    MessageType,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedsim.inert import visible
from fedsim.libraries import brief, memory_is_short
from fedsim.runs.stored import Meaning as Meaning

FIRST_NODE = 1000
RAISED = 2
"""Flower's error code for a ClientApp that raised."""

UPDATE_KEY = "fedsim.update"
"""Key of a reply's record that describes its arrays, a `Meaning`."""

GPU_TOO_SMALL = (
    "the GPU has too little memory to train this client. Lower training.batch_size, let fewer "
    'workers share a GPU (engine.gpus_per_client = 1), or set engine.device = "cpu"'
)
"""What the error of a client that ran out of GPU memory begins with."""

MACHINE_TOO_SMALL = (
    "its machine has too little memory to train this client. Lower training.batch_size, "
    "engine.workers or engine.attack_workers"
)
"""What the error of a client that ran out of the memory of its machine begins with."""

CLIENT_KEY = "fedsim.client"
"""Key of a reply's record with the client's number, the rounds that its defenses remember, and
whether `defend` changed the arrays."""


def message(content: RecordDict) -> Message:
    """A training message that is never sent, for functions that take messages only."""
    try:
        return Message(content, FIRST_NODE, MessageType.TRAIN)
    except RuntimeError:  # the sender is not set yet
        _introduce()
        return Message(content, FIRST_NODE, MessageType.TRAIN)


def _introduce() -> None:
    """Set the sender that `Message()` requires, with a private class of Flower."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def answer(app: ClientApp, message: Message, context: Context) -> Message:
    """One client's reply, or an error reply if its app raised."""
    try:
        return app(message, context)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, torch.OutOfMemoryError):
            reason = f"{GPU_TOO_SMALL}: {brief(error)}"
        elif memory_is_short(error):
            reason = f"{MACHINE_TOO_SMALL}: {brief(error)}"
        return Message(Error(code=RAISED, reason=visible(reason)), reply_to=message)


class Nodes(Mapping[int, int]):
    """The client of each node, client i being node 1000 + i, without a table of all of them.

    Args:
        clients: The number of clients.
    """

    def __init__(self, clients: int) -> None:
        self._nodes = range(FIRST_NODE, FIRST_NODE + clients)

    def __getitem__(self, node: int) -> int:
        if node not in self._nodes:
            raise KeyError(node)
        return node - FIRST_NODE

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)


class Contexts(dict[int, Context]):
    """The context of each node, made when it is first asked for.

    Args:
        clients: The client of each node.
    """

    def __init__(self, clients: Mapping[int, int]) -> None:
        super().__init__()
        self._clients = clients

    def __missing__(self, node: int) -> Context:
        config: dict[str, bool | float | int | str]
        config = {"partition-id": self._clients[node], "num-partitions": len(self._clients)}
        self[node] = Context(
            run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={}
        )
        return self[node]


class LocalGrid(Grid):
    """A Grid that calls a ClientApp without a SuperLink between them.

    Client i is node 1000 + i. Replies come in the order of the messages. Those to training messages
    are made one at a time, when they are taken, so that a round's replies need not fit in memory.

    Attributes:
        clients: The client of each node.
        contexts: The context of each node, in order of their first use.
        seeded: Whether clients draw from generators with seeds of their own alone, and never from
            the global ones of this process.
    """

    seeded = False

    def __init__(self, clients: int) -> None:
        _introduce()
        self.clients = Nodes(clients)
        self.contexts = Contexts(self.clients)
        self._queue: dict[str, Message] = {}
        self._ids = map(str, itertools.count())
        self._run: Any = None

    @abstractmethod
    def exchange(self, messages: Sequence[Message]) -> Iterable[Message]:
        """Replies in the order of the messages, each made when it is taken; updates `contexts`."""

    def context(self, client: int) -> Context:
        """The context of a client."""
        return self.contexts[FIRST_NODE + client]

    def states(self) -> dict[int, RecordDict]:
        """The state of each client that has any, by its number."""
        held = sorted(self.contexts.items())
        return {self.clients[node]: context.state for node, context in held if context.state}

    def set_run(self, run: Any) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Any:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """The ids of all nodes."""
        return list(self.clients)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages; returns their ids."""
        pushed = {next(self._ids): message for message in messages}
        self._queue |= pushed
        return list(pushed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Replies to queued messages, by the ids of those."""
        asked = [self._queue.pop(key) for key in message_ids if key in self._queue]
        return list(self.exchange(asked))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to messages."""
        asked = list(messages)
        replies = self.exchange(asked)
        training = any(m.metadata.message_type.split(".")[0] == MessageType.TRAIN for m in asked)
        return _Replies(replies, len(asked)) if training else list(replies)


class _Replies(Sequence[Message]):
    """Replies that are made when they are first taken.

    Args:
        source: Makes the replies.
        number: The number of replies.
    """

    def __init__(self, source: Iterable[Message], number: int) -> None:
        self._source, self._number = iter(source), number
        self._made: list[Message] = []

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, place: Any) -> Any:
        found = range(self._number)[place]  # counts from the end, too, and knows where that is
        if isinstance(found, range):
            return [self[one] for one in found]
        while len(self._made) <= found:
            self._made.append(next(self._source))
        return self._made[found]


def private(message: Message) -> Message:
    """A copy whose records a client may change; the arrays themselves are shared."""
    records: dict[str, Any] = dict(message.content)
    copied = {key: type(record)(dict(record)) for key, record in records.items()}
    return with_content(message, RecordDict(copied))


def with_content(message: Message, content: RecordDict) -> Message:
    """A message to the same node, with other content."""
    meta = message.metadata
    return Message(
        content, meta.dst_node_id, meta.message_type, group_id=meta.group_id, ttl=meta.ttl
    )
