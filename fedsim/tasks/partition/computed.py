"""Partitions that are computed here: without the library's import, or unknown to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt

from fedsim.errors import DataError
from fedsim.seeds import derive, numpy_generator
from fedsim.tasks.partition.base import Indices, Partition

DRAWS = 11
"""Draws of a Dirichlet partition before it is an error, as in the library."""


class Iid(Partition):
    """Random shares of equal size.

    Computed here as the library does it, because importing the library takes seconds.
    """

    kind: Literal["iid"] = "iid"

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        order = numpy_generator(seed, "partition order").permutation(len(labels))
        return tuple(np.array_split(order, clients))


class Dirichlet(Partition):
    """Each label divided among clients by a Dirichlet draw (Yurochkin et al., 2019).

    Computed here as the library does it, because importing the library takes seconds; a list of
    alphas and balancing are left to the library.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: PositiveFloat | list[PositiveFloat] = 0.5
    """Concentration, one for all clients or one for each; small values are uneven."""

    min_partition_size: int = Field(default=1, ge=0)
    """Smallest number of examples of a client; the draw is repeated until it holds."""

    self_balancing: bool = False
    """Whether a client with more than its even share gets no more examples."""

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        if self.self_balancing or isinstance(self.alpha, list):
            return super()._cut(labels, clients, seed)
        order = numpy_generator(seed, "partition order").permutation(len(labels))
        dense = np.unique(labels, return_inverse=True)[1][order]
        rng = np.random.default_rng(derive(seed, "partition draw"))
        for _ in range(DRAWS):
            shares: list[list[int]] = [[] for _ in range(clients)]
            for label in np.unique(dense):
                held = np.flatnonzero(dense == label)
                parts = np.cumsum(rng.dirichlet(np.full(clients, float(self.alpha))))
                cuts = (parts * len(held)).astype(int)[:-1]
                for share, part in zip(shares, np.split(held, cuts), strict=True):
                    share.extend(part.tolist())
            if min(map(len, shares)) >= self.min_partition_size:
                for share in shares:
                    rng.shuffle(share)
                return tuple(order[share] for share in shares)
        return super()._cut(labels, clients, seed)  # which says why


class Resample(Partition):
    """A random sample of all examples for each client, so that clients may outnumber examples.

    An example may be with many clients. Samples are drawn when they are asked for.
    """

    kind: Literal["resample"] = "resample"
    size: PositiveInt = 64
    """Number of examples of each client."""

    def cut(self, labels: NDArray[Any], clients: int, seed: int) -> Sequence[Indices]:
        """Samples without replacement, each by a seed of its client.

        Raises:
            DataError: There are fewer examples than one client is to have.
        """
        if self.size > len(labels):
            raise DataError(
                f"partition 'resample': {self.size} examples for each client, and there are "
                f"{len(labels)}; lower size"
            )
        return Samples(len(labels), clients, self.size, seed)


@dataclass(frozen=True)
class Samples(Sequence[Indices]):
    """The samples of `Resample`, one of `size` examples a client, each drawn when it is taken."""

    examples: int
    clients: int
    size: int
    seed: int

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: Any) -> Any:
        rng = numpy_generator(self.seed, "resample", range(self.clients)[client])
        return rng.choice(self.examples, self.size, replace=False, shuffle=False)


class Whole(Partition):
    """All examples of a label go to one client; a label is a speaker or the sender of messages."""

    kind: Literal["speaker", "sender"] = "speaker"

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        present = numpy_generator(seed, "partition order").permutation(np.unique(labels))
        if len(present) < clients:
            raise ValueError(
                f"every client needs a {self.kind} of its own, and there are {len(present)}"
            )
        return tuple(
            np.flatnonzero(np.isin(labels, present[client::clients])) for client in range(clients)
        )


class ByLength(Partition):
    """Examples of similar length go to the same client, as in table 4 of the HFGM paper.

    `labels` are lengths here. Which client gets which lengths is drawn.
    """

    kind: Literal["length"] = "length"
    each: PositiveInt | None = None
    """Number of examples of each client, the others being left out; by default all are used."""

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        rng = numpy_generator(seed, "partition order")
        order = rng.permutation(len(labels))  # so that equal lengths are in random order
        order = order[np.argsort(labels[order], kind="stable")]
        if self.each is None:
            runs = np.array_split(order, clients)
        else:
            runs = np.split(order, range(self.each, len(order), self.each))
            runs = [run for run in runs if len(run) == self.each]
        if len(runs) < clients:
            raise ValueError(f"there are {len(runs)} times {self.each} of them")
        return tuple(runs[i] for i in rng.permutation(len(runs))[:clients])
