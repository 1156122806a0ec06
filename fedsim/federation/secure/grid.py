"""A Grid that aggregates securely, between the clients and a strategy."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, cast

from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid

from fedsim.errors import ClientError, EngineError
from fedsim.federation.grid import RAISED, UPDATE_KEY
from fedsim.federation.other_grids import Through
from fedsim.federation.secure import CLIENTS_KEY
from fedsim.federation.secure.maskedsum import Mean, Terms, masked_sum
from fedsim.federation.secure.masking import split
from fedsim.federation.wrappers import clients_of


class SecureGrid(Through):
    """Answers a round's training messages with one reply, the mean of the clients' updates.

    The mean is weighted by examples, and the reply names its clients; the other clients get error
    replies. Neither the strategy nor a curious server ever holds a single update, and a strategy
    that averages works unchanged. Other messages pass through.

    Args:
        grid: Reaches the clients.
        protocol: "secagg+" or "masked-sum".
        seed: The seed of the run.
        most: The largest number of examples of an update.
    """

    def __init__(
        self, grid: Grid, protocol: Literal["secagg+", "masked-sum"], *, seed: int, most: int
    ) -> None:
        super().__init__(Through(grid))
        self.clients = dict(clients_of(grid))
        self._seed, self._most = seed, most
        self._protocol = masked_sum
        if protocol == "secagg+":
            from fedsim.federation.secure import secaggplus  # imports Flower's legacy server

            self._protocol = secaggplus.secagg_plus

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Queue messages other than training messages; returns their ids.

        Raises:
            EngineError: There are training messages, whose replies could be pulled one by one.
        """
        messages = list(messages)
        if any(map(_trains, messages)):
            raise EngineError(
                "training messages are pushed one by one; under secure aggregation they go "
                "through send_and_receive, a round's together"
            )
        return self._grid.push_messages(messages)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Replies to messages; to training messages, their mean and the errors."""
        messages = list(messages)
        others = [message for message in messages if not _trains(message)]
        training = [message for message in messages if _trains(message)]
        replies = list(self._grid.send_and_receive(others, timeout=timeout)) if others else []
        return [*replies, *self._aggregate(training, timeout)] if training else replies

    def _aggregate(self, messages: Sequence[Message], timeout: float | None) -> list[Message]:
        by_node = {message.metadata.dst_node_id: message for message in messages}
        (sent,) = messages[0].content.array_records.values()
        (config,) = messages[0].content.config_records.values()
        terms = Terms(
            grid=self._grid,
            messages=by_node,
            clients=self.clients,
            failed={},
            seed=self._seed,
            round=int(cast(int, config["server-round"])),
            size=1 + sum(math.prod(array.shape) for array in sent.values()),
            timeout=timeout,
            most=self._most,
        )
        mean, missing = None, "no reply"
        try:
            if len(messages) < 2:
                raise ClientError("one client was asked, and the sum of one update is that update")
            mean = self._protocol(terms)
        except ClientError as reason:
            missing = str(reason)
        added = mean.nodes if mean is not None else ()
        replies = [] if mean is None else [self._reply(mean, by_node, sent)]
        return replies + [
            Message(Error(code=RAISED, reason=terms.failed.get(node, missing)), reply_to=message)
            for node, message in by_node.items()
            if node not in added
        ]

    def _reply(self, mean: Mean, messages: Mapping[int, Message], sent: ArrayRecord) -> Message:
        loss, values = float(mean.values[0]), mean.values[1:]
        found = split(values, {name: tuple(array.shape) for name, array in sent.items()})
        arrays = {name: Array(found[name].astype(array.dtype)) for name, array in sent.items()}
        clients = [self.clients[node] for node in mean.nodes]
        content = RecordDict(
            {
                "arrays": ArrayRecord(arrays),
                "metrics": MetricRecord({"num-examples": mean.examples, "train_loss": loss}),
                UPDATE_KEY: ConfigRecord({**mean.meaning, "num_examples": mean.examples}),
                CLIENTS_KEY: ConfigRecord({"clients": sorted(clients)}),
            }
        )
        return Message(content, reply_to=messages[mean.nodes[0]])


def _trains(message: Message) -> bool:
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN
