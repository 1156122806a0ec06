"""What LLG* and LLG+ probe a model with: batches of one label, of dummies or public examples."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.records import Spec

__all__ = ["Probes", "by_label", "draw", "dummies"]


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """Batches of one size: labels (R,) int64, and members (R, b) int64, positions of images."""

    labels: Tensor
    members: Tensor


def by_label(labels: Tensor, classes: int) -> dict[int, Tensor]:
    """Positions (int64) of the examples of every label there is.

    Raises `ValueError` for labels outside 0 to classes - 1, and where there are no examples.
    """
    if not len(labels):
        raise ValueError("there is no auxiliary example; expected at least one, of any label")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"the auxiliary data have labels from {low} to {high}, expected 0 to {classes - 1}"
        )
    return {label: (labels == label).nonzero().flatten() for label in torch.unique(labels).tolist()}


def draw(held: Mapping[int, Tensor], size: int, batches: int, rng: torch.Generator) -> Probes:
    """So many batches of `size` for every label, of the examples `held` for it.

    They are cut from permutations of the label's examples, so that none repeats before all were
    used.
    """
    rows = []
    for own in held.values():
        turns = -(-batches * size // len(own))
        orders = [own[torch.randperm(len(own), generator=rng)] for _ in range(turns)]
        rows.append(torch.cat(orders)[: batches * size].reshape(batches, size))
    labels = torch.tensor(list(held)).repeat_interleave(batches)
    return Probes(labels, torch.cat(rows))


def dummies(kind: str, count: int, spec: Spec, rng: torch.Generator) -> Tensor:
    """Inputs (count, ...) float32, random within the range ([0, 1] where it is not known).

    Of "zeros", its lower end, and "ones", its upper, two stand for all.
    """
    if spec.input_shape is None:
        raise ValueError(
            "LLG* makes up inputs of a fixed shape, and this task's have none; use llg or llg+"
        )
    low, high = spec.input_range or (0.0, 1.0)
    if kind == "random":
        return low + (high - low) * torch.rand(count, *spec.input_shape, generator=rng)
    return torch.full((2, *spec.input_shape), low if kind == "zeros" else high)
