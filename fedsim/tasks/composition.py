"""Composing batches of a client's own examples.

An example repeats within a batch only where a label has too few.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["balanced", "favourites", "natural", "unbalanced"]


def natural(held: int, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
    """`steps` slices of `size` from permutations of `held` examples, as positions (size,) int64.

    When fewer than `size` are left of a permutation, they are skipped and a new one begins.
    """
    chosen: list[Tensor] = []
    while len(chosen) < steps:
        order = torch.randperm(held, generator=rng)[: held // size * size]
        chosen.extend(torch.split(order, size))
    return chosen[:steps]


def favourites(labels: Tensor, rng: torch.Generator) -> list[int]:
    """Two labels, or the only one, drawn uniformly from those present; labels: (held,) int64."""
    present = torch.unique(labels)
    drawn: list[int] = present[torch.randperm(len(present), generator=rng)][:2].tolist()
    return drawn


def unbalanced(
    labels: Tensor, size: int, rng: torch.Generator, of: Sequence[int] | None = None
) -> Tensor:
    """LLG's batch: size // 2 of one label, size // 4 of another, the rest drawn from all others.

    labels: those of the examples held, (held,) int64. of: the two labels; `favourites` draws them
    where left out. The rest are examples not yet in the batch, whatever their label. Returns
    positions (size,) int64, size <= held.
    """
    of = favourites(labels, rng) if of is None else of
    wanted = zip(of, (size // 2, size // 4), strict=False)
    picked = [_pick(labels, label, count, rng) for label, count in wanted]
    used = torch.cat(picked)
    others = torch.ones(len(labels), dtype=torch.bool)
    others[used] = False
    free = others.nonzero().flatten()
    rest = free[torch.randperm(len(free), generator=rng)[: size - len(used)]]
    return torch.cat([used, rest])


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
