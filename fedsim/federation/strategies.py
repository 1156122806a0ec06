"""FedSGD, wrappers around any Flower strategy, and strategies by name."""

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import flwr.serverapp.strategy as flower_strategies
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from fedsim.errors import ScenarioError, did_you_mean
from fedsim.scenario import Scenario

AVERAGING = ("FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedSGD", "FedYogi")
"""Strategies that need only the mean update of a round, weighted by examples."""


PRIVATE = "DifferentialPrivacy"
"""Prefix of the names of Flower's differential-privacy wrappers."""


class Wrapper(Strategy):
    """Delegates everything to another strategy."""

    def __init__(self, strategy: Strategy) -> None:
        if type(strategy).start is not Strategy.start:
            raise TypeError(
                f"{type(strategy).__name__} has a training loop of its own (it overrides start), "
                "which a wrapper would not see"
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


def clients_of(grid: Grid) -> dict[int, int]:
    """Client number by node id; the rank of the node id if the Grid does not know clients."""
    known: Mapping[int, int] | None = getattr(grid, "clients", None)
    if known is not None:
        return dict(known)
    return {node: rank for rank, node in enumerate(sorted(grid.get_node_ids()))}


class FedSGD(FedAvg):
    """Federated SGD (McMahan et al., 2017): clients send gradients, and the server takes the step.

    w <- w - lr * (mean of the clients' gradients, weighted by examples). Buffers are averaged.

    Args:
        lr: The server's learning rate.
        buffers: Names of arrays that are not gradients.
        **settings: Those of `FedAvg`.
    """

    def __init__(self, lr: float = 0.1, buffers: Collection[str] = (), **settings: Any) -> None:
        super().__init__(**settings)
        self.lr = lr
        self.buffers = frozenset(buffers)
        self._arrays = ArrayRecord()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As FedAvg does; keeps the weights to step from."""
        self._arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients and take one step."""
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        before = self._arrays.to_torch_state_dict()
        after = {
            name: value if name in self.buffers else before[name] - self.lr * value
            for name, value in mean.to_torch_state_dict().items()
        }
        return ArrayRecord(after), metrics


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


def build_strategy(scenario: Scenario, buffers: Collection[str] = ()) -> Strategy:
    """Make the strategy that a scenario names.

    `training.strategy` is a name such as "FedAvg", or a table such as
    `{name = "FedTrimmedAvg", beta = 0.1}`. A server-side differential-privacy wrapper takes the
    strategy that it wraps as `inner`.

    Args:
        scenario: The scenario.
        buffers: Names of the arrays that are not trained.

    Returns:
        The strategy, with its own settings and those that follow from `training`.

    Raises:
        ScenarioError: There is no such strategy, it refuses a setting, or it does not suit the
            algorithm or secure aggregation.
    """
    training = scenario.training
    settings = training.strategy_table
    name = str(settings.pop("name"))
    if training.algorithm == "fedsgd" and name == "FedAvg":
        name = "FedSGD"  # FedAvg of gradients: the average, and a step along it
    inner = settings.pop("inner", "FedAvg")
    if name.startswith(PRIVATE):
        _check_private(name, settings, scenario, buffers)
    if training.secure_aggregation and name in strategy_names() and name not in AVERAGING:
        raise ScenarioError(
            f'training.strategy = "{name}" looks at single updates, and under '
            "training.secure_aggregation the server gets their sum alone. Use one that averages: "
            f"{', '.join(AVERAGING)}"
        )
    common = {
        "fraction_train": training.per_round / training.clients,
        "fraction_evaluate": training.evaluate_clients / training.clients,
        "min_train_nodes": training.per_round,
        "min_evaluate_nodes": training.evaluate_clients,
        "min_available_nodes": training.clients,
    }

    def make(name: str, settings: Mapping[str, Any]) -> Strategy:
        if name not in strategy_names():
            raise ScenarioError(
                f"training.strategy: no strategy '{name}'. {did_you_mean(name, strategy_names())}"
            )
        cls: Callable[..., Strategy] = getattr(flower_strategies, name, FedSGD)
        takes = inspect.signature(cls).parameters
        given: dict[str, Any] = {key: value for key, value in common.items() if key in takes}
        if training.algorithm == "fedsgd" and cls is not FedSGD:
            raise ScenarioError(
                f'training.strategy = "{name}" combines weights, and algorithm = "fedsgd" sends '
                'gradients. Use strategy = "FedSGD", or algorithm = "fedavg"'
            )
        if training.algorithm != "fedsgd" and cls is FedSGD:
            raise ScenarioError(
                'training.strategy = "FedSGD" combines gradients, and algorithm = "fedavg" sends '
                'weights. Use strategy = "FedAvg", or algorithm = "fedsgd"'
            )
        if cls is FedSGD:
            given = {**common, "lr": training.lr, "buffers": buffers}
        if "strategy" in takes:
            wrapped = {"name": inner} if isinstance(inner, str) else dict(inner)
            if str(wrapped.get("name", "")).startswith(PRIVATE):
                raise ScenarioError(
                    f"training.strategy.inner = {wrapped['name']!r}: {name} wraps a strategy that "
                    'combines updates, such as "FedAvg", and no other wrapper'
                )
            given["strategy"] = make(str(wrapped.pop("name", "FedAvg")), wrapped)
            given["num_sampled_clients"] = training.per_round
        if "client_learning_rate" in takes:  # QFedAvg's
            given["client_learning_rate"] = training.lr
        if fixed := sorted((set(common) | {"weighted_by_key"}) & set(settings)):
            raise ScenarioError(
                f"training.strategy.{fixed[0]}: who takes part and how much a client weighs follow "
                "from [training], and budgets are counted by it; set training.clients_per_round "
                "or training.evaluate_clients instead"
            )
        if unknown := set(settings) - set(takes):
            key = sorted(unknown)[0]
            raise ScenarioError(
                f"training.strategy.{key}: {name} has no such setting. {did_you_mean(key, takes)}"
            )
        try:
            return cls(**{**given, **settings})
        except (TypeError, ValueError, AttributeError) as error:
            raise ScenarioError(f"training.strategy ({name}): {error}") from error

    return make(name, settings)


def _check_private(
    name: str, settings: Mapping[str, Any], scenario: Scenario, buffers: Collection[str]
) -> None:
    """Check what Flower's differential-privacy wrappers do not check themselves."""
    where = f"training.strategy ({name})"
    if "num_sampled_clients" in settings:
        raise ScenarioError(
            f"{where}: num_sampled_clients is training.clients_per_round = "
            f"{scenario.training.per_round}, by which the noise is scaled; leave it out"
        )
    if buffers:
        raise ScenarioError(
            f"{where} clips and adds noise to all that clients send, running statistics too "
            f"({min(buffers)}), which destroys them. Use a model without BatchNorm"
        )


def strategy_names() -> list[str]:
    """Names of the strategies that a scenario can use, fedsim's and Flower's, sorted."""
    flower = [
        name
        for name, cls in vars(flower_strategies).items()
        if isinstance(cls, type) and issubclass(cls, Strategy) and not inspect.isabstract(cls)
    ]
    return sorted({*flower, "FedSGD"} - {"FedXgbBagging", "FedXgbCyclic"})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Reduce Flower's log to errors, unless FEDSIM_DEBUG is set."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.DEBUG if os.environ.get("FEDSIM_DEBUG") else logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
