"""What travels under secure aggregation: what a client is told, and its update before the mask."""

from dataclasses import dataclass
from typing import cast

from flwr.app import ConfigRecord

from fedsim.federation.secure.masking import Vector

__all__ = ["Plain", "Round"]


@dataclass(frozen=True, slots=True)
class Round:
    """What a client is told of the protocol.

    seed: the run's. client: its own number. clients: how many take part. partners: with whom
    it shares masks, or, in a query, those of them that are gone. size: of a masked vector.
    """

    seed: int
    round: int
    client: int
    clients: int
    partners: tuple[int, ...]
    size: int

    def record(self) -> ConfigRecord:
        """As it travels."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return ConfigRecord({**told, "partners": list(self.partners)})

    @classmethod
    def read(cls, record: ConfigRecord) -> "Round":
        """From a message; inverse of `record`."""
        told = {key: int(cast(int, record[key])) for key in cls.__slots__ if key != "partners"}
        return cls(**told, partners=tuple(cast(list[int], record["partners"])))


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """An update before it is masked.

    values (1 + size of all arrays,): the training loss, then the arrays by sorted name.
    examples: its weight in the mean. meaning: what the arrays are; no number of examples.
    """

    values: Vector
    examples: int
    meaning: ConfigRecord
