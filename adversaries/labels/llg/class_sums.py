"""The head's class sums for batches of one label each, by one forward pass wherever that is exact.

With cross-entropy, mean over a batch, the head's gradient is the mean of (p_k - y_k) h_k', so that
the sum of its row i is g_i = mean_k (p_ki - y_ki) H_k, where H_k is the sum of the head's input
h_k. In a batch of one label c that is mean_k p_ki H_k, less mean_k H_k where i = c: the images'
p_k H_k and H_k, from a forward pass, give g for every label and every batch drawn from them.

Exact as long as images do not meet in a batch (batch normalisation), the forward pass is no draw
(dropout), and the loss is that cross-entropy. So one probe is worked out by autograd too, and
where it differs the next way is taken, each probe's batch on its own and at last autograd for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from adversaries.labels.llg.probes import Probes
from fedsim.gradients import head_calls
from fedsim.seeds import isolated
from fedsim.victim import VictimModel

__all__ = ["Way", "class_sums"]

Way = Literal["pooled", "batched", "autograd"]

AT_ONCE = 256
"""Images in one forward pass when they are pooled."""

TOLERANCE = 1e-3
"""Of the largest class sum: how far a probe may lie from autograd's. float32 rounds at 1e-6, and a
GPU's convolutions at 1e-4 unless told otherwise."""


def class_sums(
    model: VictimModel,
    classes: int,
    images: Tensor,
    probes: Sequence[Probes],
    *,
    seed: int,
    way: Way | None = None,
) -> tuple[list[Tensor], Way]:
    """g_i of every probe, a tensor (R, classes) float64 for each size, and how they were found.

    images: (N, ...) on the model's device. seed: of what the model itself draws (dropout).
    way: "pooled" (all images in one pass), "batched" (one forward pass a probe) or "autograd" (one
    backward pass a probe); left out, the first that agrees with autograd. The model's buffers are
    put back as they were.
    """
    run = _Run(model, classes, images)
    if way is not None:
        with isolated(seed, "probes"):
            return run.by(way, probes), way
    # A mean over a single example hides a loss that sums.
    told = min(probes, key=lambda one: (one.members.shape[1] < 2, one.members.shape[1]))
    one = [Probes(told.labels[:1], told.members[:1])]
    with isolated(seed, "probes"):
        (expected,) = run.by("autograd", one)
        if not expected.isfinite().all():
            raise ValueError(
                "the model's own gradient holds NaN or Inf: its weights do, or it overflows on the "
                "probes, and no update of it can be told from another"
            )
        # Among others, an image of each batch: so batch statistics and dropout show.
        others = Probes(told.labels, told.members[:, :1].clone())
        if _agree(run.by("pooled", [*one, others]), expected):
            return run.by("pooled", probes), "pooled"
    with isolated(seed, "probes"):
        way = "batched" if _agree(run.by("batched", one), expected) else "autograd"
    with isolated(seed, "probes"):
        return run.by(way, probes), way


def _agree(found: list[Tensor], expected: Tensor) -> bool:
    close = TOLERANCE * float(expected.abs().max())
    return bool(found) and torch.allclose(found[0], expected, rtol=0, atol=close)


class _Run:
    def __init__(self, model: VictimModel, classes: int, images: Tensor) -> None:
        self.model, self.classes, self.images = model, classes, images

    def by(self, way: Way, probes: Sequence[Probes]) -> list[Tensor]:
        """Class sums in one of the ways; [] where it cannot."""
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
        """From (R, classes + 1), the means of p H and of H, to the class sums (R, classes)."""
        g = means[:, :-1].clone()
        g[torch.arange(len(g)), labels] -= means[:, -1]
        return g

    def _products(self, images: Tensor) -> Tensor:
        """p_k H_k and, in the last column, H_k of every image, (b, classes + 1) float64."""
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
            weight = self.model.gradient(self.images[members], target, names=[name])[name]
            rows = weight if weight.shape[0] == self.classes else weight.T
            found.append(rows.double().sum(dim=1).cpu())
        return torch.stack(found)


class _HeadOutOfSight(Exception):
    """The head's input and logits do not show in one call of the module of that name."""


@contextmanager
def _buffers_kept(module: nn.Module) -> Iterator[None]:
    """Running statistics go back to what they were: every way starts from the same."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


@contextmanager
def _channels_last(module: nn.Module) -> Iterator[None]:
    """Filters lie with their channels side by side, and then as before.

    A quarter to a half faster on a CPU for ResNets, which are the models that come here.
    """
    before = [(filters, filters.data) for filters in module.parameters() if filters.ndim == 4]
    for filters, value in before:
        filters.data = value.contiguous(memory_format=torch.channels_last)
    try:
        yield
    finally:
        for filters, value in before:
            filters.data = value
