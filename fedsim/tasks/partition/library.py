"""Partitions that `flwr-datasets` computes."""

from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from fedsim.tasks.partition.base import Partition


class Growing(Partition):
    """Random shares whose size grows with the client's number n: as n, n squared or exp(n)."""

    kind: Literal["linear", "square", "exponential"]


class Size(Partition):
    """Random shares of given sizes; examples beyond their sum are not used."""

    kind: Literal["size"] = "size"
    partition_sizes: list[PositiveInt]
    """Number of examples of each client."""


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
