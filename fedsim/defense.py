"""What a defense is: two hooks on the client, `prepare` (local training) and `protect` (update)."""

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedsim.plugin import Plugin
from fedsim.records import Batch, Update

__all__ = ["ClientState", "Defense", "Training"]

ClientState = MutableMapping[str, Tensor]
"""One defense's tensors on one client, kept across rounds (error feedback lives here)."""


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """A client's local training, before it runs.

    module: the model, loaded and in training mode. batches: one a local step.
    gradient(module, batch): the mean gradient of the loss on a batch, by parameter name, and the
    loss; DP-SGD replaces it. rng: seeded by (seed, round, client).
    """

    module: nn.Module
    batches: tuple[Batch, ...]
    gradient: Callable[[nn.Module, Batch], tuple[dict[str, Tensor], float]]
    algorithm: Literal["fedsgd", "fedavg"]
    lr: float
    momentum: float
    weight_decay: float
    rng: torch.Generator

    def replace(self, **changes: Any) -> "Training":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


class Defense(Plugin):
    """Something a client does so that its update tells less. Override one hook or both."""

    def prepare(self, training: Training) -> Training:
        """Change how the client trains. The default changes nothing."""
        return training

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Change what the client sends. The default changes nothing.

        update: kind "gradient" or "delta", never "weights" (the caller turns weights into a delta
        and back, so noise and signs mean the same under FedSGD and FedAvg). Return a new record
        and leave this one's tensors as they are; tensors passed through untouched are sent
        bit-identical. rng: a CPU generator for (seed, round, client, this defense).
        """
        return update

    def spent(self) -> Mapping[str, float]:
        """The privacy budget used so far, such as {"epsilon": 3.1, "delta": 1e-5}."""
        return {}
