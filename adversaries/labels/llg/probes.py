"""Probes of LLG* and LLG+: batches of one label, of dummy inputs or auxiliary examples."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.records import Spec


@dataclass(frozen=True, slots=True, eq=False)
class Probes:
    """R batches of one size, each of a single label.

    Attributes:
        labels: Label of each batch, (R,) int64.
        members: Indices of each batch's images, (R, b) int64.
    """

    labels: Tensor
    members: Tensor


def by_label(labels: Tensor, classes: int) -> dict[int, Tensor]:
    """Group examples by label.

    Args:
        labels: Labels (N,) int64.
        classes: Number of classes.

    Returns:
        Indices of the examples of each label that occurs, int64.

    Raises:
        ValueError: There is no example, or a label is outside 0 to classes - 1.
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
    """Draw batches of every label.

    Batches are cut from permutations of the label's examples, so that none repeats before all
    have been used.

    Args:
        held: Indices of the examples of each label.
        size: Number of examples in a batch.
        batches: Number of batches for each label.
        rng: Generator on the CPU.
    """
    rows = []
    for own in held.values():
        turns = -(-batches * size // len(own))
        orders = [own[torch.randperm(len(own), generator=rng)] for _ in range(turns)]
        rows.append(torch.cat(orders)[: batches * size].reshape(batches, size))
    labels = torch.tensor(list(held)).repeat_interleave(batches)
    return Probes(labels, torch.cat(rows))


def dummies(kind: str, count: int, spec: Spec, rng: torch.Generator) -> Tensor:
    """Make dummy inputs within the input range, or within [0, 1] if it is not known.

    Args:
        kind: "random" for uniform values, "zeros" or "ones" for the lower or upper end.
        count: Number of random inputs; of constant inputs two are returned.
        spec: The task's spec.
        rng: Generator on the CPU.

    Returns:
        Inputs (count, ...) or (2, ...) float32.

    Raises:
        ValueError: Inputs have no fixed shape.
    """
    if spec.input_shape is None:
        raise ValueError(
            "LLG* makes up inputs of a fixed shape, and this task's have none; use llg or llg+"
        )
    low, high = spec.input_range or (0.0, 1.0)
    if kind == "random":
        return low + (high - low) * torch.rand(count, *spec.input_shape, generator=rng)
    return torch.full((2, *spec.input_shape), low if kind == "zeros" else high)
