"""Wrappers around any Flower strategy: followed clients, and the learning rate of each round."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedsim.scenario.training import Training


class Wrapper(Strategy):
    """Delegates everything to another strategy."""

    def __init__(self, strategy: Strategy) -> None:
        kind = type(strategy).__name__
        if not isinstance(strategy, Strategy):
            raise TypeError(
                f"{kind} is no strategy of flwr.serverapp.strategy: give one of that package, and "
                "not of Flower's legacy flwr.server.strategy, to a ServerApp with @app.main()"
            )
        if type(strategy).start is not Strategy.start:
            raise TypeError(
                f"{kind} has a training loop of its own (it overrides start), which a wrapper "
                "would not see: move what it does between rounds to configure_train and "
                "aggregate_train"
            )
        self.strategy = strategy

    def round(self, server_round: int) -> int:
        """The number of a round as the strategy inside counts it."""
        return server_round

    def configure_train(self, server_round: int, *args: Any, **more: Any) -> Iterable[Message]:
        """Delegate to the strategy inside."""
        return self.strategy.configure_train(self.round(server_round), *args, **more)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Delegate to the strategy inside."""
        return self.strategy.aggregate_train(self.round(server_round), replies)

    def configure_evaluate(self, server_round: int, *args: Any, **more: Any) -> Iterable[Message]:
        """Delegate to the strategy inside."""
        return self.strategy.configure_evaluate(self.round(server_round), *args, **more)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Delegate to the strategy inside."""
        return self.strategy.aggregate_evaluate(self.round(server_round), replies)

    def summary(self) -> None:
        """Delegate to the strategy inside."""
        self.strategy.summary()

    def __getattr__(self, name: str) -> Any:
        if name == "strategy" or name.startswith("__"):  # not there yet while being unpickled
            raise AttributeError(name)
        return getattr(self.strategy, name)


def clients_of(grid: Grid) -> Mapping[int, int]:
    """Client number by node id; the rank of the node id if the Grid does not know clients."""
    known: Mapping[int, int] | None = getattr(grid, "clients", None)
    if known is not None:
        return known
    return {node: rank for rank, node in enumerate(sorted(grid.get_node_ids()))}


class Following(Wrapper):
    """Makes some clients take part every round (`threat.follow`).

    A followed client that was not sampled gets the message of the last sampled client that is not
    followed, so that the number of participants stays the same. This changes which clients train,
    and is therefore not a part of `HonestButCurious`.

    Args:
        strategy: The strategy that samples clients.
        clients: The numbers of the followed clients.
    """

    def __init__(self, strategy: Strategy, clients: Sequence[int]) -> None:
        super().__init__(strategy)
        self.followed = list(clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, some of them to followed clients."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        node_of = {client: node for node, client in clients_of(grid).items()}
        followed = [node_of[client] for client in self.followed]
        present = {message.metadata.dst_node_id for message in messages}
        absent = [node for node in followed if node not in present]
        for place in reversed(range(len(messages))):
            if not absent:
                break
            old = messages[place]
            if old.metadata.dst_node_id not in followed:
                messages[place] = Message(
                    old.content,
                    dst_node_id=absent.pop(0),
                    message_type=MessageType.TRAIN,
                    group_id=old.metadata.group_id,
                )
        return messages


class Scheduled(Wrapper):
    """Sets the learning rate of each round, and lets clients evaluate in `evaluate_rounds` alone.

    The rate is `lr` in what clients are sent, and FedSGD's own.

    Args:
        strategy: The strategy; under FedSGD one with an attribute `lr`.
        training: The algorithm, the learning rate, its schedule, and the rounds of evaluation.
    """

    def __init__(self, strategy: Strategy, training: Training) -> None:
        super().__init__(strategy)
        self._training = training

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of the strategy inside, with the learning rate of the round."""
        rate = self._training.rate(server_round)
        config["lr"] = rate
        if self._training.algorithm == "fedsgd":
            cast(Any, self.strategy).lr = rate
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(self, server_round: int, *args: Any, **more: Any) -> Iterable[Message]:
        """The messages of the strategy inside, or none in a round without evaluation."""
        if not self._training.evaluates(server_round):
            return []
        return super().configure_evaluate(server_round, *args, **more)


def weighted_by(strategy: Strategy) -> str:
    """The metric by which a strategy, or the one that it wraps, weights replies."""
    while not hasattr(strategy, "weighted_by_key") and isinstance(
        inner := getattr(strategy, "strategy", None), Strategy
    ):
        strategy = inner
    return str(getattr(strategy, "weighted_by_key", "num-examples"))
