"""Secure aggregation, by which the server learns the sum of the clients' updates alone.

masking      fixed point, pairwise masks and who shares them; numpy alone
client       the client's part, as a Flower mod
maskedsum    the server's part of "masked-sum", an emulation
secaggplus   both parts of "secagg+", Flower's own protocol
grid         SecureGrid, which runs a protocol and passes on the mean
"""

from dataclasses import dataclass
from typing import cast

from flwr.app import ConfigRecord

from fedsim.federation.secure.masking import Vector

ROUND_KEY = "fedsim.secure"
"""Key of a message's record with the protocol's parameters for one client and round."""

MASKED_KEY = "fedsim.masked"
"""Key of a reply's record with the masked vector."""

CLIENTS_KEY = "fedsim.clients"
"""Key of the record, in the reply of a `SecureGrid`, with the clients whose updates are in it."""

SECAGGPLUS_KEY = "secaggplus_configs"
"""Key of the record that Flower's SecAgg+ uses in messages and replies."""


@dataclass(frozen=True, slots=True)
class Round:
    """The protocol's parameters for one client in one round, sent by the server.

    Attributes:
        seed: The run's seed, from which pairwise masks are derived.
        round: The round's number, from 1.
        client: This client's number.
        clients: How many clients take part in the round.
        partners: The clients that this one shares a mask with; in a query, those among them that
            have dropped out.
        size: The length of a masked vector.
    """

    seed: int
    round: int
    client: int
    clients: int
    partners: tuple[int, ...]
    size: int

    def record(self) -> ConfigRecord:
        """The record of a message."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return ConfigRecord({**fields, "partners": list(self.partners)})

    @classmethod
    def read(cls, record: ConfigRecord) -> "Round":
        """Read from a message's record; the inverse of `record`."""
        fields = {key: int(cast(int, record[key])) for key in cls.__slots__ if key != "partners"}
        return cls(**fields, partners=tuple(cast(list[int], record["partners"])))


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    """A client's update before it is masked.

    Attributes:
        values: float64 of shape (1 + P,): the training loss, then the P values of all arrays,
            flattened, in the order of their sorted names.
        examples: The number of examples, the update's weight in the mean.
        meaning: The record that says what the arrays are (gradient or weights, optimizer, steps),
            without the number of examples.
    """

    values: Vector
    examples: int
    meaning: ConfigRecord
