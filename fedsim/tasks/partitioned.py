"""Tasks whose training examples are divided among clients."""

from abc import abstractmethod

from torch import Tensor

from fedsim.errors import DataError
from fedsim.task import Task

__all__ = ["Partitioned"]


class Partitioned(Task):
    """A task with a fixed set of training examples, each held by at most one client."""

    @property
    @abstractmethod
    def shares(self) -> tuple[Tensor, ...]:
        """For each client the indices of its examples, int64."""

    def num_examples(self, client: int) -> int:
        """How many training examples a client holds.

        Raises:
            DataError: There is no such client.
        """
        return len(self.share(client))

    def share(self, client: int) -> Tensor:
        """The indices of a client's examples, int64 of shape (n,).

        Raises:
            DataError: There is no such client.
        """
        if not 0 <= client < self.clients:
            raise DataError(
                f"there is no client {client}; clients run from 0 to {self.clients - 1}"
            )
        return self.shares[client]
