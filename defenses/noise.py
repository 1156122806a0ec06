"""Gaussian and Laplacian noise on the update, without a privacy guarantee."""

import math
from abc import abstractmethod

import torch
from pydantic import Field
from torch import Tensor

from fedsim import ClientState, Defense, Update


class _Noise(Defense):
    sigma: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Standard deviation of the noise per coordinate, in the units of the update; 0: no noise."""

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Add noise to the update; unchanged for sigma 0."""
        if self.sigma == 0:
            return update
        noisy = {
            name: value + self.sigma * self._drawn(value, rng).to(value.device)
            for name, value in update.tensors.items()
        }
        return update.replace(tensors=noisy)

    @abstractmethod
    def _drawn(self, like: Tensor, rng: torch.Generator) -> Tensor:
        """Draw independent noise of variance 1 with the shape and dtype of a tensor."""


class GaussianNoise(_Noise):
    """Adds independent N(0, sigma^2) to every coordinate of the update.

    The update is not clipped, so there is no privacy guarantee, and `spent` reports none. Under
    FedAvg the noise is added to the delta, which is smaller than a gradient by the factor lr x
    steps, so the same sigma perturbs it more. Buffers are sent unchanged.
    """

    name = "gaussian-noise"
    keywords = ("noise", "perturbation", "additive noise", "obfuscation")

    def _drawn(self, like: Tensor, rng: torch.Generator) -> Tensor:
        return torch.randn(like.shape, generator=rng, dtype=like.dtype)


class LaplacianNoise(_Noise):
    """Adds independent Laplacian noise to every coordinate of the update (DLG, section 5.1).

    The standard deviation is sigma, as for Gaussian noise; the scale is sigma / sqrt(2). The update
    is not clipped, so there is no privacy guarantee. Buffers are sent unchanged.
    """

    name = "laplacian-noise"
    keywords = ("noise", "perturbation", "additive noise", "Laplace", "obfuscation")

    def _drawn(self, like: Tensor, rng: torch.Generator) -> Tensor:
        # The difference of two exponential variables of rate 1 is Laplacian with variance 2.
        ahead, behind = torch.empty(2, *like.shape, dtype=like.dtype).exponential_(generator=rng)
        return torch.sub(ahead, behind) / math.sqrt(2)
