"""Gaussian noise on what is sent: the plainest perturbation, without a privacy budget."""

from typing import ClassVar

import torch
from pydantic import Field

from fedsim.defense import ClientState, Defense
from fedsim.records import Update

__all__ = ["GaussianNoise"]


class GaussianNoise(Defense):
    """Adds independent N(0, sigma^2) to every coordinate of the update.

    No clipping, so no privacy guarantee: `spent` reports none. The noise is on what is sent, so
    under FedAvg it is on the delta, which is lr x steps times smaller than a gradient: the same
    sigma perturbs it more. Buffers are sent as they are.
    """

    name: ClassVar[str] = "gaussian-noise"

    sigma: float = Field(
        default=0.01,
        ge=0,
        allow_inf_nan=False,
        description="standard deviation per coordinate, in the units of the update; 0: no noise",
    )

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """The update plus noise; with sigma 0 the very same update."""
        if self.sigma == 0:
            return update
        noisy = {}
        for name, value in update.tensors.items():
            noise = torch.randn(value.shape, generator=rng, dtype=value.dtype)
            noisy[name] = value + self.sigma * noise.to(value.device)
        return update.replace(tensors=noisy)
