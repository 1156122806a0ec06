"""Clients that send what no honest client sends, written as defenses; for tests alone.

Each does so on the clients named in `clients`, and on all where none is named. A defense is not
told which client it is on; it recognises the generator that it is handed.
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedsim import ClientState, Defense, Update
from fedsim.seeds import derive

ROUNDS = 100


class _Hostile(Defense):
    clients: list[int] = Field(default=[], description="on which clients; on all where empty")
    rounds: list[int] = Field(default=[], description="in which rounds; in all where empty")
    seed: int = Field(default=7, ge=0, description="the scenario's seed")
    position: int = Field(
        default=0, ge=0, description="this defense's place in the scenario's list"
    )

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is sent instead; the first tensor is the one to play with."""
        raise NotImplementedError

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update spoiled on the chosen clients, and left alone on the others."""
        if not self._chosen(rng):
            return update
        return update.replace(tensors=self.spoil(dict(update.tensors)))

    def _chosen(self, rng: torch.Generator) -> bool:
        if not self.clients and not self.rounds:
            return True
        purpose = f"defense.{self.position}.{self.name}"
        return rng.initial_seed() in {
            derive(self.seed, purpose, round, client)
            for round in self.rounds or range(1, ROUNDS)
            for client in self.clients or range(ROUNDS)
        }


class _Fills(_Hostile):
    value: ClassVar[float]

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """One coordinate of the first tensor overwritten."""
        name = next(iter(tensors))
        spoiled = tensors[name].clone()
        spoiled.view(-1)[0] = self.value
        return {**tensors, name: spoiled}


class SendsNaN(_Fills):
    """One NaN in the first tensor."""

    name: ClassVar[str] = "bad-nan"
    value: ClassVar[float] = float("nan")


class SendsInf(_Fills):
    """One infinity in the first tensor."""

    name: ClassVar[str] = "bad-inf"
    value: ClassVar[float] = float("inf")


class SendsHuge(_Fills):
    """One value near the largest that float32 holds."""

    name: ClassVar[str] = "bad-huge"
    value: ClassVar[float] = 1e38


class DropsTensor(_Hostile):
    """Leaves the first tensor out."""

    name: ClassVar[str] = "bad-drop"

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """All but the first."""
        return dict(list(tensors.items())[1:])


class AddsTensor(_Hostile):
    """Sends a tensor that nobody asked for."""

    name: ClassVar[str] = "bad-extra"

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """One more."""
        return {**tensors, "extra": torch.zeros(3)}


class ChangesShape(_Hostile):
    """Sends the first tensor flattened and one longer."""

    name: ClassVar[str] = "bad-shape"

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The first in another shape."""
        name = next(iter(tensors))
        return {**tensors, name: torch.zeros(tensors[name].numel() + 1)}


class RaisesOnClient(_Hostile):
    """Raises in the client's training."""

    name: ClassVar[str] = "bad-raise"

    def spoil(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Raise."""
        raise RuntimeError("this client is broken on purpose")
