"""Gradients of a head under softmax cross-entropy, and RLG on them."""

import torch
from torch import Tensor, nn

from adversaries.labels.rlg import RLG
from fedsim import testing
from fedsim.records import Reconstruction

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "swish": nn.functional.silu,
    "gelu": nn.functional.gelu,
    "none": lambda x: x,
}


def gradient(
    seed: int = 0,
    *,
    classes: int = 200,
    size: int = 20,
    features: int = 64,
    activation: str = "tanh",
    repeats: bool = False,
) -> tuple[Tensor, set[int]]:
    """dW (classes, features) float32 of an untrained head, and its labels."""
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(classes, generator=rng)
    labels = order[torch.randint(size // 2, (size,), generator=rng)] if repeats else order[:size]
    h = ACTIVATIONS[activation](torch.randn(size, features, generator=rng))
    w = (2 * torch.rand(classes, features, generator=rng) - 1) / features**0.5
    p = torch.softmax(h @ w.T, dim=1)
    p[torch.arange(size), labels] -= 1
    return p.T @ h / size, set(labels.tolist())


def attacked(weight: Tensor, attack: RLG | None = None, **known) -> Reconstruction:
    seen = testing.observation(gradient={"out.proj.weight": weight}, head="out.proj", **known)
    return (attack or RLG()).reconstruct(seen, testing.job())
