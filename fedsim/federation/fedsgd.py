"""FedSGD: clients send gradients, and the server takes the step."""

from collections.abc import Collection, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


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
