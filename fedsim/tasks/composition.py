"""Composing batches of a client's own examples.

An example repeats within a batch only where a label has too few.
"""

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Composition", "balanced", "composed", "natural", "unbalanced"]

Composition = Literal["natural", "unbalanced", "balanced"]


def composed(
    how: Composition, labels: Tensor, size: int, steps: int, rng: torch.Generator
) -> list[Tensor]:
    """`steps` batches of `size` examples with these labels (held,), as positions (size,) int64."""
    if how == "natural":
        return natural(len(labels), size, steps, rng)
    if how == "unbalanced":
        return unbalanced(labels, size, steps, rng)
    return [balanced(labels, size, rng) for _ in range(steps)]


def natural(held: int, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
    """`steps` slices of `size` from permutations of `held` examples, as positions (size,) int64.

    When fewer than `size` are left of a permutation, they are skipped and a new one begins.
    """
    chosen: list[Tensor] = []
    while len(chosen) < steps:
        order = torch.randperm(held, generator=rng)
        whole = min(held // size, steps - len(chosen))
        chosen.extend(order[place * size : (place + 1) * size] for place in range(whole))
    return chosen


def unbalanced(labels: Tensor, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
    """LLG's batches: size // 2 of one label, size // 4 of another, the rest drawn from all others.

    labels: those of the examples held, (held,) int64. Both labels are drawn once, uniformly from
    those present, for all steps; the rest of a batch are examples not yet in it, whatever their
    label. Returns `steps` times positions (size,) int64, size <= held.
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
    """A batch in which the counts of the labels present differ by at most one.

    labels: those of the examples held, (held,) int64. Which labels get one more is drawn. Returns
    positions (size,) int64.
    """
    present = torch.unique(labels)
    present = present[torch.randperm(len(present), generator=rng)].tolist()
    counts = [size // len(present) + (i < size % len(present)) for i in range(len(present))]
    picked = [_pick(labels, *wanted, rng) for wanted in zip(present, counts, strict=True)]
    return torch.cat(picked)


def _pick(labels: Tensor, label: int, count: int, rng: torch.Generator) -> Tensor:
    """Positions of `count` examples of a label, repeating only where there are too few."""
    own = (labels == label).nonzero().flatten()
    order = own[torch.randperm(len(own), generator=rng)]
    if count > len(own):
        more = torch.randint(len(own), (count - len(own),), generator=rng)
        order = torch.cat([order, own[more]])
    return order[:count]
