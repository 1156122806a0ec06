"""Flower's own privacy mods as defenses.

Flower is imported when a mod runs, so that runs can be read where Flower is not installed.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field

from fedsim.defense import ClientState, Defense, Exposure
from fedsim.errors import ClientError
from fedsim.privacy import epsilon, weak_delta
from fedsim.records import Update
from fedsim.seeds import isolated


class _Mod(Defense):
    """Runs a Flower mod on an update, as if it were the reply to a model of zeros."""

    clipping_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Bound of the update's L2 norm."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Apply the mod to the update, with its noise seeded by `rng`."""
        from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

        from fedsim.federation.grid import message

        if not update.tensors:
            return update
        # Flat, because Flower passes over arrays without dimensions.
        flat = {name: value.contiguous().reshape(-1) for name, value in update.tensors.items()}
        zeros = {name: torch.zeros_like(value) for name, value in flat.items()}
        config = ConfigRecord({"clipping_norm": self.clipping_norm})
        asked = message(RecordDict({"arrays": ArrayRecord(zeros), "config": config}))
        answered = RecordDict(
            {
                "arrays": ArrayRecord(flat),
                "metrics": MetricRecord({"num-examples": update.num_examples}),
            }
        )
        context = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
        # Its noise comes from numpy's global generator.
        drawn = int(torch.randint(2**62, (), generator=rng))
        try:
            with isolated(drawn, self.name):
                reply = self.mod()(asked, context, lambda *_: Message(answered, reply_to=asked))
        except ZeroDivisionError as error:
            raise ClientError(
                f"{self.name}: Flower's clipping divides by the norm of the update, and this one "
                "is zero throughout: nothing was trained, or a defense listed before removed it all"
            ) from error
        if reply.has_error():
            raise ClientError(f"{self.name}: {reply.error.reason}")
        (arrays,) = reply.content.array_records.values()
        tensors = {
            name: value.to(update.tensors[name].dtype).reshape(update.tensors[name].shape)
            for name, value in arrays.to_torch_state_dict().items()
        }
        return update.replace(tensors=tensors)

    @abstractmethod
    def mod(self) -> Any:
        """Flower's mod with these settings."""


class FixedClipping(_Mod):
    """Flower's `fixedclipping_mod`: scales an update down to an L2 norm of at most clipping_norm.

    It is the client's half of `DifferentialPrivacyClientSideFixedClipping`, which adds noise on the
    server: set that as `training.strategy`, with the same clipping_norm. By itself it bounds an
    update, and hides nothing.
    """

    name: ClassVar[str] = "flower-fixed-clipping"
    keywords = ("clipping", "norm clipping", "differential privacy", "central differential privacy")

    def mod(self) -> Any:
        """`fixedclipping_mod`."""
        from flwr.clientapp.mod import fixedclipping_mod

        return fixedclipping_mod


class LocalDP(_Mod):
    """Flower's `LocalDpMod`: clips an update, and adds Gaussian noise on the client.

    The noise has a standard deviation of sensitivity sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and
    Roth, 2014, theorem A.1, proven for epsilon < 1), which is what each single update costs. What
    all rounds cost is counted from that deviation by Opacus' RDP accountant and reported. Arrays
    that are not trained are sent as they are.
    """

    name: ClassVar[str] = "flower-local-dp"
    keywords = ("differential privacy", "local differential privacy", "clipping", "Gaussian noise")

    sensitivity: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Most that one client changes the update, in L2 norm."""

    epsilon: float = Field(default=1.0, gt=0)
    """Privacy budget of one update."""

    delta: float = Field(default=1e-5, gt=0, lt=1)
    """Probability with which epsilon may not hold."""

    def mod(self) -> Any:
        """`LocalDpMod` with these settings."""
        from flwr.clientapp.mod import LocalDpMod

        return LocalDpMod(self.clipping_norm, self.sensitivity, self.epsilon, self.delta)

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """Epsilon and delta, against the server, of all updates of the most exposed client."""
        if exposure.buffers or not all(self.covers(name) for name in exposure.trained):
            return {"epsilon": math.inf, "delta": self.delta}
        sigma = self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon
        multiplier = sigma / self.clipping_norm * math.sqrt(exposure.summed)
        return {
            "epsilon": epsilon(multiplier, 1.0, exposure.participations, self.delta),
            "delta": self.delta,
        }

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """Warnings of a delta that is too large, and of a sensitivity below clipping_norm."""
        found = weak_delta(self.name, self.delta, exposure.clients, "clients")
        if self.sensitivity >= self.clipping_norm:
            return found
        return [
            *found,
            f"{self.name}: sensitivity = {self.sensitivity:g} is below clipping_norm = "
            f"{self.clipping_norm:g}, the largest change that one client can make, so that the "
            "privacy loss is larger than the epsilon shown. Set both to the same value",
        ]
