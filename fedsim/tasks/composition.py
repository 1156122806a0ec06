"""Which of a client's examples each batch has: drawn, composed by label, or epoch by epoch."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fedsim.seeds import torch_generator

Composition = Literal["natural", "unbalanced", "balanced"]


def compose(
    how: Composition, labels: Tensor, size: int, steps: int, rng: torch.Generator
) -> list[Tensor]:
    """Compose the batches of one client.

    An example repeats within a batch only if its label has too few examples.

    Args:
        how: The rule; see `natural`, `unbalanced` and `balanced`.
        labels: The labels of the client's examples, int64 of shape (N,).
        size: Examples in a batch.
        steps: The number of batches.
        rng: Source of randomness.

    Returns:
        The positions of each batch's examples, `steps` tensors int64 of shape (size,).
    """
    if how == "natural":
        return natural(len(labels), size, steps, rng)
    if how == "unbalanced":
        return unbalanced(labels, size, steps, rng)
    return [balanced(labels, size, rng) for _ in range(steps)]


def natural(held: int, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
    """Cut random permutations of the examples into batches.

    Args:
        held: The number of examples.
        size: Examples in a batch. A permutation's last examples are skipped if they are fewer.
        steps: The number of batches.
        rng: Source of randomness.

    Returns:
        The positions of each batch's examples, `steps` tensors int64 of shape (size,).
    """
    chosen: list[Tensor] = []
    while len(chosen) < steps:
        order = torch.randperm(held, generator=rng)
        whole = min(held // size, steps - len(chosen))
        chosen.extend(order[place * size : (place + 1) * size] for place in range(whole))
    return chosen


def in_epochs(held: int, size: int, steps: Sequence[int], seed: int, client: int) -> list[Tensor]:
    """Take the batches of a client that goes through its examples epoch by epoch.

    An epoch is a permutation of the examples, and has ceil(held / size) batches, the last of which
    may be smaller (as of torch's `DataLoader`).

    Args:
        held: The number of examples.
        size: Examples in a batch.
        steps: Numbers of the local steps, counted from 0 over all rounds.
        seed: The run's seed.
        client: The client, from 0.

    Returns:
        The positions of each batch's examples, int64 of shape (size,) or shorter.
    """
    in_epoch = math.ceil(held / size)
    orders = {
        epoch: torch.randperm(held, generator=torch_generator(seed, "epoch", client, epoch))
        for epoch in {step // in_epoch for step in steps}
    }
    places = [(orders[step // in_epoch], step % in_epoch * size) for step in steps]
    return [order[first : first + size] for order, first in places]


def unbalanced(labels: Tensor, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
    """LLG's unbalanced batches: half of one label, a quarter of another, the rest of any.

    Both labels are drawn once for all steps, uniformly from those that the client holds. The rest
    of a batch are examples that are not in it yet, whatever their label.

    Args:
        labels: The labels of the client's examples, int64 of shape (N,).
        size: Examples in a batch, at most N.
        steps: The number of batches.
        rng: Source of randomness.

    Returns:
        The positions of each batch's examples, `steps` tensors int64 of shape (size,).
    """
    present = torch.unique(labels)
    present = present[torch.randperm(len(present), generator=rng)]
    wanted = list(zip(present.tolist(), (size // 2, size // 4), strict=False))
    chosen = []
    for _ in range(steps):
        used = torch.cat([_pick(labels, label, count, rng) for label, count in wanted])
        others = torch.ones(len(labels), dtype=torch.bool)
        others[used] = False
        free = others.nonzero().flatten()
        rest = free[torch.randperm(len(free), generator=rng)[: size - len(used)]]
        chosen.append(torch.cat([used, rest]))
    return chosen


def balanced(labels: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """A batch in which the counts of the client's labels differ by at most one.

    Args:
        labels: The labels of the client's examples, int64 of shape (N,).
        size: Examples in the batch.
        rng: Draws which labels get one example more.

    Returns:
        The positions of the batch's examples, int64 of shape (size,).
    """
    present = torch.unique(labels)
    present = present[torch.randperm(len(present), generator=rng)].tolist()
    counts = [size // len(present) + (i < size % len(present)) for i in range(len(present))]
    picked = [_pick(labels, *wanted, rng) for wanted in zip(present, counts, strict=True)]
    return torch.cat(picked)


def _pick(labels: Tensor, label: int, count: int, rng: torch.Generator) -> Tensor:
    """The positions of `count` examples with this label; repeats them only if there are fewer."""
    own = (labels == label).nonzero().flatten()
    order = own[torch.randperm(len(own), generator=rng)]
    if count > len(own):
        more = torch.randint(len(own), (count - len(own),), generator=rng)
        order = torch.cat([order, own[more]])
    return order[:count]
