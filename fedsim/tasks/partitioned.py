"""Tasks whose training examples are cut into shares, one a client."""

from abc import abstractmethod

from torch import Tensor

from fedsim.errors import DataError
from fedsim.tasks import Task

__all__ = ["Partitioned"]


class Partitioned(Task):
    """A task with a fixed set of training examples, each of them one client's at most."""

    @property
    @abstractmethod
    def shares(self) -> tuple[Tensor, ...]:
        """Indices (int64) of each client's examples."""

    def num_examples(self, client: int) -> int:
        """How many training examples a client holds; raises `DataError` for no client."""
        return len(self.share(client))

    def share(self, client: int) -> Tensor:
        """Indices (n,) int64 of a client's examples; raises `DataError` for no client."""
        if not 0 <= client < self.clients:
            raise DataError(
                f"there is no client {client}; clients run from 0 to {self.clients - 1}"
            )
        return self.shares[client]
