"""What the server catches of a client, and an adversary that keeps what it saw of it."""

from typing import ClassVar

import torch
from flwr.app import ConfigRecord
from support.tiny import ask, initial

from fedsim.adversary import Adversary
from fedsim.engine.inline import InlineGrid
from fedsim.federation.server import read_update
from fedsim.knowledge import Knowledge
from fedsim.records import Interception, Reconstruction


def intercepted(run, client, round=1):
    """What the server catches of a client."""
    arrays = initial(run)
    reply = ask(InlineGrid(run.training.clients), run, client, round=round, arrays=arrays)
    before = dict(arrays.to_torch_state_dict())
    return Interception(round, (client,), before, read_update(reply, ConfigRecord(), run.training))


class Asks(Adversary):
    """Keeps what it saw."""

    name = "asks"
    needs = Knowledge(0)
    recovers = frozenset({"labels"})
    kept: ClassVar[list] = []

    def reconstruct(self, seen, job):
        self.kept.append((seen, job))
        job.progress(0, 1.0)
        return Reconstruction(labels=torch.zeros(1, dtype=torch.int64))
