"""A Grid that sends messages to groups of clients on Ray actors."""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from ray.exceptions import RayError

from fedsim.federation.client import app
from fedsim.federation.grid import RAISED, LocalGrid, answer

SHARE = 64 * 2**20
"""Bytes of models in one call of an actor, and in its answer; at least one model."""


class ClientWorker:
    """An actor that answers groups of messages, and keeps data and model between them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def answer(
        self, messages: list[Message], contexts: list[Context]
    ) -> list[tuple[Message, RecordDict]]:
        """The replies, each with the state that the client has after it."""
        return [
            (answer(app, message, context), context.state)
            for message, context in zip(messages, contexts, strict=True)
        ]


class RayGrid(LocalGrid):
    """Sends messages to actors in groups, so that the global model is pickled once a group.

    A worker that dies is replaced and gets its messages again one by one, so that the client that
    killed it is identified and the others answer.

    Args:
        clients: The number of clients.
        pool: The actors.
        new: Makes another actor.
    """

    def __init__(self, clients: int, pool: list[Any], new: Any) -> None:
        super().__init__(clients)
        self._pool, self._new = pool, new

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies in the order of the messages; two groups an actor are under way at a time."""
        shares, pool = self._shares(messages), self._pool
        tasks: deque[Any] = deque()
        for number, share in enumerate(shares):
            for ahead in shares[number + len(tasks) : number + 2 * len(pool)]:
                contexts = [self.contexts[m.metadata.dst_node_id] for m in ahead]
                actor = pool[(number + len(tasks)) % len(pool)]
                tasks.append(actor.answer.remote(ahead, contexts))
            try:
                pairs = ray.get(tasks.popleft())
            except RayError:
                pairs = [self._again(number % len(pool), message) for message in share]
            for reply, state in pairs:
                self.contexts[reply.metadata.src_node_id].state = state
                yield reply

    def _shares(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Split messages into groups, by the size of their models and evenly over the actors."""
        sent = messages[0].content.array_records.values() if messages else ()
        size = max(1, SHARE // max(1, sum(record.count_bytes() for record in sent)))
        size = min(size, math.ceil(len(messages) / len(self._pool)) or 1)
        return [messages[at : at + size] for at in range(0, len(messages), size)]

    def _again(self, index: int, message: Message) -> tuple[Message, RecordDict]:
        """Send a message alone, to a new worker if the old one has died."""
        context = self.contexts[message.metadata.dst_node_id]
        for _ in range(2):
            try:
                pair: tuple[Message, RecordDict] = ray.get(
                    self._pool[index].answer.remote([message], [context])
                )[0]
                return pair
            except RayError as error:
                last = error
                self._pool[index] = self._new()
        reason = f"its worker died: {type(last).__name__}"
        return Message(Error(code=RAISED, reason=reason), reply_to=message), context.state
