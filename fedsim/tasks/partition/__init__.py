"""Partition of labelled examples among clients, by the partitioners of `flwr-datasets`.

A scenario says `partition = {kind = "dirichlet", alpha = 0.5}`. The settings of a kind are the
parameters of the library's partitioner, with the same names.
"""

import functools
import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from fedsim.errors import DataError, did_you_mean
from fedsim.plugin import table, validated
from fedsim.seeds import derive, isolated, numpy_generator

Indices = NDArray[np.int64]


class Partition(BaseModel):
    """A rule by which examples are divided among clients.

    Clients' shares are disjoint. Together they hold every example, unless a kind says otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


class Iid(Partition):
    """Random shares of equal size.

    Computed here as the library does it, because importing the library takes seconds.
    """

    kind: Literal["iid"] = "iid"

    def _cut(self, labels: NDArray[Any], clients: int, seed: int) -> tuple[Indices, ...]:
        order = numpy_generator(seed, "partition order").permutation(len(labels))
        return tuple(np.array_split(order, clients))


class Growing(Partition):
    """Random shares whose size grows with the client's number n: as n, n squared or exp(n)."""

    kind: Literal["linear", "square", "exponential"]


class Size(Partition):
    """Random shares of given sizes; examples beyond their sum are not used."""

    kind: Literal["size"] = "size"
    partition_sizes: list[PositiveInt]
    """Number of examples of each client."""


class Dirichlet(Partition):
    """Each label divided among clients by a Dirichlet draw (Yurochkin et al., 2019)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: PositiveFloat | list[PositiveFloat] = 0.5
    """Concentration, one for all clients or one for each; small values are uneven."""

    min_partition_size: int = Field(default=1, ge=0)
    """Smallest number of examples of a client; the draw is repeated until it holds."""

    self_balancing: bool = False
    """Whether a client with more than its even share gets no more examples."""


class InnerDirichlet(Partition):
    """Shares of given sizes, each with label frequencies from a Dirichlet draw (FedDyn)."""

    kind: Literal["inner-dirichlet"] = "inner-dirichlet"
    alpha: PositiveFloat | list[PositiveFloat] = 0.5
    """Concentration, one for all labels or one for each; small values are uneven."""

    partition_sizes: list[PositiveInt] | None = None
    """Number of examples of each client; equal by default."""

    def arguments(self, examples: int, clients: int) -> dict[str, Any]:
        """Settings of the library; without sizes, all examples are divided evenly."""
        each, more = divmod(examples, clients)
        sizes = self.partition_sizes or [each + (client < more) for client in range(clients)]
        return {"alpha": self.alpha, "partition_sizes": sizes}


class Pathological(Partition):
    """A fixed number of labels per client (McMahan et al., 2017); other labels are not used."""

    kind: Literal["pathological"] = "pathological"
    num_classes_per_partition: int = Field(default=2, ge=1)
    """Number of labels of each client."""

    class_assignment_mode: Literal["random", "deterministic", "first-deterministic"] = "random"
    """How labels are assigned to clients."""


class Shard(Partition):
    """Shards of equal size from the examples sorted by label; an incomplete shard is not used."""

    kind: Literal["shard"] = "shard"
    num_shards_per_partition: PositiveInt | None = None
    """Number of shards of each client; 2 unless `shard_size` is given."""

    shard_size: PositiveInt | None = None
    """Number of examples of a shard."""

    keep_incomplete_shard: bool = False
    """Whether the last, shorter shard is kept."""

    def arguments(self, examples: int, clients: int) -> dict[str, Any]:
        """Settings of the library, with two shards per client by default."""
        given = super().arguments(examples, clients)
        return given if self.shard_size else {"num_shards_per_partition": 2, **given}


class Continuous(Partition):
    """Clients ordered by label number, from fully mixed (0) to fully sorted (1)."""

    kind: Literal["continuous"] = "continuous"
    strictness: float = Field(default=0.5, ge=0, le=1)
    """Degree of sorting by label, from 0 (mixed) to 1 (sorted)."""


class Distribution(Partition):
    """A few consecutive labels per client, in given proportions (FedProx's lognormal split)."""

    kind: Literal["distribution"] = "distribution"
    distribution_array: list[list[float]]
    """Table with a row for each label, and in it a column for each client that holds the label."""

    num_unique_labels_per_partition: PositiveInt = 2
    """Number of labels of each client."""

    preassigned_num_samples_per_label: int = Field(default=1, ge=0)
    """Smallest number of examples that a client has of each of its labels."""

    rescale: bool = True
    """Whether rows are read as proportions, and not as counts."""

    def arguments(self, examples: int, clients: int) -> dict[str, Any]:
        """Settings of the library, the table as an array."""
        return super().arguments(examples, clients) | {
            "distribution_array": np.asarray(self.distribution_array, dtype=float)
        }


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


PARTITIONS: dict[str, type[Partition]] = {
    kind: cls
    for cls in (
        *(Continuous, Dirichlet, Distribution, Growing, Iid, InnerDirichlet),
        *(Pathological, Resample, Shard, Size),
    )
    for kind in get_args(cls.model_fields["kind"].annotation)
}
"""The kinds of every task, by name."""


def as_partition(value: Any, kinds: Mapping[str, type[Partition]] = PARTITIONS) -> Partition:
    """Validate the partition that a scenario asks for.

    Args:
        value: A kind ("iid"), or a table with a kind and its settings.
        kinds: The kinds that the task supports.

    Raises:
        DataError: The kind is unknown.
        ScenarioError: A setting is unknown or has the wrong type.
    """
    if isinstance(value, Partition):
        return value
    example = '{kind = "dirichlet", alpha = 0.5}'
    settings = table(value, "task.partition", key="kind", example=example)
    kind = settings["kind"]
    if kind not in kinds:
        raise DataError(f"task.partition: no partition '{kind}'. {did_you_mean(kind, kinds)}")
    return validated(kinds[kind], settings, "task.partition")
