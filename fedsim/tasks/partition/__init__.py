"""Partition of labelled examples among clients, most by the partitioners of `flwr-datasets`.

A scenario says `partition = {kind = "dirichlet", alpha = 0.5}`. The settings of a kind are the
parameters of the library's partitioner, with the same names.
"""

from collections.abc import Mapping
from typing import Any, get_args

from fedsim.errors import DataError, did_you_mean
from fedsim.plugin import table, validated
from fedsim.tasks.partition.base import Indices as Indices
from fedsim.tasks.partition.base import Partition as Partition
from fedsim.tasks.partition.computed import ByLength as ByLength
from fedsim.tasks.partition.computed import Dirichlet as Dirichlet
from fedsim.tasks.partition.computed import Iid as Iid
from fedsim.tasks.partition.computed import Resample as Resample
from fedsim.tasks.partition.computed import Samples as Samples
from fedsim.tasks.partition.computed import Whole as Whole
from fedsim.tasks.partition.library import Continuous as Continuous
from fedsim.tasks.partition.library import Distribution as Distribution
from fedsim.tasks.partition.library import Growing as Growing
from fedsim.tasks.partition.library import InnerDirichlet as InnerDirichlet
from fedsim.tasks.partition.library import Pathological as Pathological
from fedsim.tasks.partition.library import Shard as Shard
from fedsim.tasks.partition.library import Size as Size

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
