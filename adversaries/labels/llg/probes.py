"""Probes of LLG* and LLG+: batches of one label each, and the row sums of their head's gradient.

With cross-entropy, mean over a batch, the head's gradient is the mean of (p_k - y_k) h_k'. The sum
of its row i is g_i = mean_k (p_ki - y_ki) H_k, where H_k is the sum of the head's input h_k. In a
batch of one label c this is mean_k p_ki H_k, minus mean_k H_k if i = c. One forward pass gives p_k
and H_k of all images, and with them g for every label and every batch drawn from these images.

This is exact if images of a batch do not interact (batch normalisation), the forward pass is not
random (dropout), and the loss is that cross-entropy. One probe is therefore also computed by
autograd. If the results differ, each probe's batch gets a forward pass of its own, and if these
differ, too, all probes are computed by autograd.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.gradients import head_calls, with_two_rows
from fedsim.records import Spec
from fedsim.seeds import isolated
from fedsim.victim import VictimModel


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


Way = Literal["pooled", "batched", "autograd"]

AT_ONCE = 256
"""Number of images in one forward pass of the "pooled" way."""

TOLERANCE = 1e-3
"""Largest difference from autograd, relative to the largest class sum, that counts as rounding.

float32 rounds at 1e-6, and convolutions of a GPU at 1e-4 by default.
"""


def class_sums(
    model: VictimModel,
    classes: int,
    images: Tensor,
    probes: Sequence[Probes],
    *,
    seed: int,
) -> tuple[list[Tensor], Way]:
    """Compute the row sums g_i of the head's gradient for every probe.

    The model's buffers are restored afterwards.

    Args:
        model: The victim's model.
        classes: Number of classes.
        images: Images (N, ...) on the model's device, of which probes are made.
        probes: Probes of each size.
        seed: Seed of what the model itself draws (dropout).

    Returns:
        For each size, sums (R, classes) float64; and the way in which they were computed, the
        first that agrees with autograd: "pooled" (all images in one pass), "batched" (a forward
        pass for each probe) or "autograd" (a backward pass for each probe).

    Raises:
        ValueError: The model's gradient holds NaN or Inf.
    """
    run = _Run(model, classes, images)
    # With a single example a loss that is a sum would not differ from a mean.
    first = min(probes, key=lambda one: (one.members.shape[1] < 2, one.members.shape[1]))
    one = [Probes(first.labels[:1], first.members[:1])]
    with isolated(seed, "probes", wide=False):
        (expected,) = run.by("autograd", one)
        if not expected.isfinite().all():
            raise ValueError(
                "the model's own gradient holds NaN or Inf: its weights do, or it overflows on the "
                "probes, and no update of it can be distinguished from another"
            )
        # Evaluated along with an image of each batch, so that batch statistics and dropout show.
        others = Probes(first.labels, first.members[:, :1].clone())
        if _agree(run.by("pooled", [*one, others]), expected):
            return run.by("pooled", probes), "pooled"
    with isolated(seed, "probes", wide=False):
        way: Way = "batched" if _agree(run.by("batched", one), expected) else "autograd"
    with isolated(seed, "probes", wide=False):
        return run.by(way, probes), way


def _agree(found: list[Tensor], expected: Tensor) -> bool:
    close = TOLERANCE * float(expected.abs().max())
    return bool(found) and torch.allclose(found[0], expected, rtol=0, atol=close)


class _Run:
    def __init__(self, model: VictimModel, classes: int, images: Tensor) -> None:
        self.model, self.classes, self.images = model, classes, images

    def by(self, way: Way, probes: Sequence[Probes]) -> list[Tensor]:
        """Compute class sums in one of the ways; [] if the head's passes cannot be observed."""
        with _buffers_kept(self.model.module):
            if way == "autograd":
                return [self._autograd(each) for each in probes]
            try:
                return self._pooled(probes) if way == "pooled" else self._batched(probes)
            except _HeadOutOfSight:
                return []

    def _pooled(self, probes: Sequence[Probes]) -> list[Tensor]:
        used = torch.unique(torch.cat([each.members.flatten() for each in probes]))
        parts = [self._products(images) for images in torch.split(self.images[used], AT_ONCE)]
        table = torch.cat(parts)
        found = []
        for each in probes:
            members = torch.searchsorted(used, each.members)
            means = functional.embedding_bag(members, table, mode="mean")
            found.append(self._labelled(means, each.labels))
        return found

    def _batched(self, probes: Sequence[Probes]) -> list[Tensor]:
        found = []
        with _channels_last(self.model.module):
            for each in probes:
                means = [self._products(self.images[batch]).mean(dim=0) for batch in each.members]
                found.append(self._labelled(torch.stack(means), each.labels))
        return found

    def _labelled(self, means: Tensor, labels: Tensor) -> Tensor:
        """Compute class sums (R, classes) from (R, classes + 1), the means of p H and of H."""
        g = means[:, :-1].clone()
        g[torch.arange(len(g)), labels] -= means[:, -1]
        return g

    def _products(self, images: Tensor) -> Tensor:
        """Compute p_k H_k and, as last column, H_k of every image, (b, classes + 1) float64."""
        any_label = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        with torch.no_grad(), head_calls(self.model) as passes:
            self.model.loss(images, any_label)
        if len(passes) != 1:
            raise _HeadOutOfSight
        features, logits = passes[0]
        if features.ndim != 2 or logits.shape != (len(images), self.classes):
            raise _HeadOutOfSight
        total = features.double().sum(dim=1, keepdim=True)
        return torch.cat([logits.double().softmax(dim=1) * total, total], dim=1).cpu()

    def _autograd(self, probes: Probes) -> Tensor:
        name = f"{self.model.head}.weight"
        found = []
        for label, members in zip(probes.labels, probes.members, strict=True):
            target = torch.full((len(members),), int(label), device=self.images.device)
            gradient = self.model.gradient(self.images[members], target, names=[name])
            weight = with_two_rows(gradient, self.model.head)[name]
            rows = weight if weight.shape[0] == self.classes else weight.T
            found.append(rows.double().sum(dim=1).cpu())
        return torch.stack(found)


class _HeadOutOfSight(Exception):
    """The head is not called exactly once with features and logits of the expected shapes."""


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Restore buffers afterwards, so that every way starts from the same running statistics."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


@contextmanager
def _channels_last(module: nn.Module) -> Iterator[None]:
    """Store filters in the channels-last layout, and in the original one afterwards.

    For ResNets, which need this way, a CPU is a quarter to a half faster with it.
    """
    before = [(filters, filters.data) for filters in module.parameters() if filters.ndim == 4]
    for filters, value in before:
        filters.data = value.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for filters, value in before:
            filters.data = value
