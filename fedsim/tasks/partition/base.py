"""What all partitions share: settings, checks, and the partitioners of `flwr-datasets`."""

import functools
import inspect
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsim.described import Described
from fedsim.errors import DataError
from fedsim.seeds import derive, isolated, numpy_generator

Indices = NDArray[np.int64]


class Partition(Described):
    """A rule by which examples are divided among clients.

    Clients' shares are disjoint. Together they hold every example, unless a kind says otherwise.
    """

    kind: str
    """Name of the partitioner."""

    def cut(self, labels: NDArray[Any], clients: int, seed: int) -> Sequence[Indices]:
        """Divide the examples; the result depends on the arguments alone.

        Args:
            labels: The labels of the examples, integers of shape (N,).
            clients: The number of clients.
            seed: Shuffles the examples first, and seeds the partitioner.

        Returns:
            For each client the positions of its examples in `labels`, int64.

        Raises:
            DataError: There are more clients than examples, a client would get none, or the
                partitioner rejects its settings.
        """
        if clients > len(labels):
            raise DataError(
                f"{clients} clients and {len(labels)} examples to cut among them; every client "
                'needs one. Lower training.clients, use more data, or task.partition = "resample"'
            )
        settings, stored = self.model_dump_json(), labels.astype(np.int64).tobytes()
        with isolated(seed, "partition"), warnings.catch_warnings():
            # The library warns at every attempt of what its final error says.
            warnings.simplefilter("ignore")
            try:
                shares = _shares(type(self), settings, stored, clients, seed)
            except (AssertionError, IndexError, TypeError, ValueError, ZeroDivisionError) as error:
                raise DataError(
                    f"partition '{self.kind}' cannot cut {len(labels)} examples of "
                    f"{len(np.unique(labels))} labels among {clients} clients: {error}"
                ) from error
        if empty := [client for client, share in enumerate(shares) if not len(share)]:
            named = ", ".join(map(str, empty[:10])) + (" ..." if len(empty) > 10 else "")
            raise DataError(
                f"partition '{self.kind}' leaves {len(empty)} of {clients} clients without an "
                f"example (client {named}). Lower training.clients, use more data, or choose a "
                f"milder partition{' (a larger alpha)' if hasattr(self, 'alpha') else ''}."
            )
        return shares

    def arguments(self, examples: int, clients: int) -> dict[str, Any]:
        """Arguments of the library's partitioner besides the column, the clients and the seed."""
        return self.model_dump(exclude={"kind"}, exclude_none=True)

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        import datasets
        from flwr_datasets import partitioner as library

        order = numpy_generator(seed, "partition order").permutation(len(labels))
        # One of the partitioners assumes that labels run from 0 without a gap.
        dense = np.unique(labels, return_inverse=True)[1]
        table = datasets.Dataset.from_dict({"label": dense[order], "index": order})
        cls = getattr(library, self.kind.title().replace("-", "") + "Partitioner")
        accepted = inspect.signature(cls).parameters
        common = {
            "num_partitions": clients,
            "partition_by": "label",
            "seed": derive(seed, "partition draw"),
        }
        partitioner = cls(
            **{key: value for key, value in common.items() if key in accepted},
            **self.arguments(len(labels), clients),
        )
        partitioner.dataset = table.with_format("numpy")
        if partitioner.num_partitions != clients:
            raise ValueError(f"it makes {partitioner.num_partitions} partitions")
        return tuple(
            np.asarray(partitioner.load_partition(client)[:]["index"], dtype=np.int64)
            for client in range(clients)
        )


@functools.lru_cache(maxsize=8)
def _shares(
    kind: type[Partition], settings: str, labels: bytes, clients: int, seed: int
) -> tuple[Indices, ...]:
    """`Partition._cut`, computed once in a process for all tasks that share data and settings."""
    partition = kind.model_validate_json(settings)
    return partition._cut(np.frombuffer(labels, dtype=np.int64), clients, seed)
