"""Updates for defenses to change."""

import torch

from fedsim.records import Update


def drawn(*shape, seed=0):
    """Standard normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head_gradient():
    """A gradient of a head, its bias zero throughout, with a buffer beside it."""
    tensors = {"head.weight": drawn(200, 100), "head.bias": torch.zeros(200)}
    return Update(tensors, "gradient", buffers={"mean": torch.ones(3)}, lr=0.1, num_examples=8)


def protect(defense, update, seed=0, state=None):
    """The update as a client with the defense sends it."""
    state = {} if state is None else state
    return defense.protect(update, torch.Generator().manual_seed(seed), state)


def of(**tensors):
    """What a client's weights have moved by."""
    return Update(tensors, "delta", lr=0.1)
