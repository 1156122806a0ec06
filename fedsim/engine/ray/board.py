"""The progress of attacks on any node of a Ray cluster, in the store that all nodes share."""

import dataclasses
import json
import uuid
from contextlib import suppress

from ray.experimental import internal_kv

from fedsim.attacking.progress import AttackProgress


class Board:
    """The latest progress of each call of an adversary, in the key-value store of Ray's head.

    Attributes:
        name: Under which workers write.
    """

    def __init__(self) -> None:
        self.name = f"fedsim-progress-{uuid.uuid4().hex}"

    @staticmethod
    def write(name: str, call: int, now: AttackProgress) -> None:
        """Write the progress of a call, from any process of the cluster.

        Args:
            name: The board's name.
            call: The number of the call.
            now: The progress.
        """
        with suppress(Exception):  # the head may be lost, which is not the attack's fault
            internal_kv._internal_kv_put(
                _key(name, call), json.dumps(dataclasses.asdict(now)).encode()
            )

    def read(self, call: int) -> AttackProgress | None:
        """The latest progress of a call; None if it has not written any."""
        found = internal_kv._internal_kv_get(_key(self.name, call))
        return AttackProgress(**json.loads(found)) if found else None

    def forget(self, call: int) -> None:
        """Remove what a call has written."""
        with suppress(Exception):
            internal_kv._internal_kv_del(_key(self.name, call))


def _key(name: str, call: int) -> bytes:
    return f"{name}/{call}".encode()
