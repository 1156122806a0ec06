"""FedSGD: clients send gradients, and the server takes the step, by SGD or another optimizer."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray
from torch import Tensor

from fedsim.federation.arrays import LocalArray, tensor_record
from fedsim.federation.contents import Viewed, records_of
from fedsim.federation.grid import message
from fedsim.federation.wrappers import Wrapper

RATES = {
    **dict.fromkeys(["FedAdagrad", "FedAdam", "FedYogi"], "eta"),
    "FedAvgM": "server_learning_rate",
}
"""The argument and attribute that is the server's learning rate, by Flower's server optimizer."""


BLOCK = 2**15
"""Values that are multiplied before they are added."""


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
        replies = list(replies)
        for reply in replies:
            if reply.has_content():
                reply.content = Viewed.of(reply.content)
        contents = [one.content for one in self._check_and_log_replies(replies, is_train=True)[0]]
        if not contents:
            return None, None
        mean = weighted_mean(contents, self.weighted_by_key)
        metrics = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        before = self._arrays.to_torch_state_dict()
        after = {
            name: value if name in self.buffers else before[name] - self.lr * value
            for name, value in mean.items()
        }
        return tensor_record(after), metrics


def weighted_mean(contents: Sequence[RecordDict], weighted_by: str) -> dict[str, Tensor]:
    """The mean that Flower's `aggregate_arrayrecords` takes, with the same bits and fewer copies.

    Args:
        contents: Contents of replies, with one ArrayRecord and one MetricRecord each.
        weighted_by: The metric that replies are weighted by.
    """
    weights = [records_of(one, MetricRecord)[0][weighted_by] for one in contents]
    total = sum(cast(list[float], weights))
    found: dict[str, NDArray[Any]] = {}
    for content, weight in zip(contents, cast(list[float], weights), strict=True):
        share = weight / total
        for name, array in records_of(content, ArrayRecord)[0].items():
            values = array.values if isinstance(array, LocalArray) else array.numpy()
            if name not in found:
                found[name] = values * share  # a number if there is one value
            elif values.size <= BLOCK or not _add(found[name], values, share):
                found[name] += values * share
    return {name: torch.from_numpy(np.asarray(values)) for name, values in found.items()}


def _add(total: NDArray[Any], values: NDArray[Any], share: float) -> bool:
    """Add `values * share` block by block, so that the product stays in the processor's cache.

    Returns:
        Whether it was added: not if the two differ in shape or in how they are laid out in memory.
    """
    contiguous = total.flags.c_contiguous and values.flags.c_contiguous
    if total.shape != values.shape or not contiguous:
        return False
    there, added = total.reshape(-1), values.reshape(-1)
    for begin in range(0, added.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        there[part] += added[part] * share
    return True


class ServerOptimizer(Wrapper):
    """FedSGD whose step is that of a server optimizer (Reddi et al., ICLR 2021, algorithm 2).

    Flower's optimizers take the change of the clients' mean weights as the pseudo-gradient's
    opposite. Here that change is the opposite of the clients' mean gradient: the optimizer
    aggregates one reply, the weights before the round minus the mean gradient. Buffers are
    averaged, and are not optimized.

    Args:
        strategy: One of the strategies of Flower in `RATES`.
        buffers: Names of arrays that are not gradients.
    """

    def __init__(self, strategy: Strategy, buffers: Collection[str] = ()) -> None:
        super().__init__(strategy)
        self.buffers = frozenset(buffers)
        self._mean = FedAvg()
        self._arrays = ArrayRecord()

    @property
    def lr(self) -> float:
        """The server's learning rate."""
        return float(getattr(self.strategy, RATES[type(self.strategy).__name__]))

    @lr.setter
    def lr(self, value: float) -> None:
        setattr(self.strategy, RATES[type(self.strategy).__name__], value)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As the optimizer does; keeps the weights to step from."""
        self._arrays = arrays
        # FedAvgM would step from its own copy, and without momentum at a rate of 1 not at all.
        vars(self.strategy).update(current_arrays=None, server_opt=True)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the gradients, and take one step of the optimizer."""
        mean, metrics = self._mean.aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        before, found = self._arrays.to_torch_state_dict(), mean.to_torch_state_dict()
        # In float64, since the optimizer subtracts the weights again.
        weights = {
            name: value.double() - found[name].double() * (name not in self.buffers)
            for name, value in before.items()
        }
        content = RecordDict(
            {"arrays": ArrayRecord(weights), "metrics": MetricRecord({"num-examples": 1})}
        )
        after, _ = super().aggregate_train(server_round, [message(content)])
        if after is None:
            raise TypeError(f"{type(self.strategy).__name__} returned no arrays for one reply")
        stepped = {
            name: found[name] if name in self.buffers else value.to(before[name].dtype)
            for name, value in after.to_torch_state_dict().items()
        }
        return ArrayRecord(stepped), metrics
