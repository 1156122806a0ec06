"""Tasks whose training examples are divided among clients, and what a client's batches are."""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import Batch, Reconstruction
from fedsim.seeds import torch_generator
from fedsim.task import Task

Composition = Literal["natural", "unbalanced", "balanced"]


class Partitioned(Task):
    """A task with a fixed set of training examples, each held by at most one client."""

    test_examples: int | None = Field(default=None, ge=1)
    """Number of test examples to use, drawn by the seed; by default all."""

    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of examples in the test split of data that has no split of its own."""

    auxiliary_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of training examples that no client holds; they are the auxiliary data."""

    @property
    @abstractmethod
    def shares(self) -> tuple[Tensor, ...]:
        """For each client the indices of its examples, int64."""

    def num_examples(self, client: int) -> int:
        """How many training examples a client holds.

        Raises:
            DataError: There is no such client.
        """
        return len(self.share(client))

    def share(self, client: int) -> Tensor:
        """The indices of a client's examples, int64 of shape (n,).

        Raises:
            DataError: There is no such client.
        """
        if not 0 <= client < self.clients:
            raise DataError(
                f"there is no client {client}; clients run from 0 to {self.clients - 1}"
            )
        return self.shares[client]

    @abstractmethod
    def batch(self, index: Tensor, rng: torch.Generator | None = None) -> Batch:
        """The examples with these indices, int64 of shape (n,), as one batch.

        Args:
            index: The indices.
            rng: Draws which tokens are masked, if the task masks any; by default the generator of
                the public examples' masks.
        """

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """Compose a client's training batches, a pure function of (seed, client, round).

        The first batches are the same for any number of steps.

        Args:
            client: Number of the client, from 0.
            round: Number of the round, from 1.
            batch_size: Number of examples in a batch; fewer if the client has fewer.
            steps: Number of batches.

        Raises:
            DataError: There is no such client.
        """
        rng = torch_generator(self.seed, "masks", client, round)
        return [self.batch(index, rng) for index in self.drawn(client, round, batch_size, steps)]

    def drawn(self, client: int, round: int, batch_size: int, steps: int) -> list[Tensor]:
        """Draw the examples of a client's batches in a round.

        Args:
            client: The client.
            round: The round.
            batch_size: Examples in a batch, if the client has as many.
            steps: The number of batches.

        Returns:
            The indices of each batch's examples, `steps` tensors int64.

        Raises:
            DataError: There is no such client.
        """
        share = self.share(client)
        rng = torch_generator(self.seed, "batches", client, round)
        batches = self._composed(share, min(batch_size, len(share)), steps, rng)
        return [share[positions] for positions in batches]

    def _composed(self, share: Tensor, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
        """The positions in a client's share of each batch's examples."""
        return natural(len(share), size, steps, rng)


class Labelled(Partitioned):
    """A task whose examples have one label each, by which batches can be composed."""

    train_examples: int | None = Field(default=None, ge=2)
    """Number of training examples to use, drawn by the seed; by default all."""

    composition: Composition = "natural"
    """How batches are composed of a client's examples: "natural", "unbalanced" or "balanced"."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """The labels of all examples, int64 of shape (N,)."""

    @property
    def draws_uniformly(self) -> bool:
        """Whether batches are natural; the other compositions depend on the labels."""
        return self.composition == "natural"

    def _composed(self, share: Tensor, size: int, steps: int, rng: torch.Generator) -> list[Tensor]:
        return compose(self.composition, self.labels[share], size, steps, rng)


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


def sample(index: Tensor, count: int | None, seed: int, purpose: str) -> Tensor:
    """Draw examples without replacement.

    Args:
        index: The indices to draw from, int64.
        count: How many; None for all of them.
        seed: The run's seed.
        purpose: What the draw is for; see `fedsim.seeds`.

    Returns:
        The indices drawn, sorted; `index` itself if `count` leaves none out.
    """
    if count is None or count >= len(index):
        return index
    order = torch.randperm(len(index), generator=torch_generator(seed, purpose))
    return index[order[:count]].sort().values


def divide(index: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Divide examples at random into auxiliary ones and the rest, both sorted.

    Args:
        index: The indices of the examples, int64.
        share: The share of them that becomes auxiliary.
        seed: The run's seed.
    """
    order = index[torch.randperm(len(index), generator=torch_generator(seed, "auxiliary"))]
    count = int(share * len(index))
    return order[:count].sort().values, order[count:].sort().values


def claim_labels(labels: Tensor, scores: Tensor, **more: Any) -> Reconstruction:
    """A reconstruction from labels alone: their set, their counts and their number.

    Args:
        labels: The labels, int64 of shape (n,).
        scores: A score for each class, of shape (classes,).
        more: Other fields of the reconstruction.
    """
    counts = dict(Counter(labels.tolist()))
    return Reconstruction(
        label_set=frozenset(counts),
        label_counts=counts,
        labels=labels,
        label_scores=scores,
        num_labels=len(labels),
        **more,
    )


def sha256(described: object, *tensors: Tensor) -> str:
    """Hash tensors and what else describes the examples, as hexadecimal digits."""
    digest = hashlib.sha256(repr(described).encode())
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def render_lines(originals: Sequence[str] | None, claims: Sequence[str]) -> dict[str, bytes]:
    """Write original texts and what was claimed of each to two files, one text a line.

    Returns:
        The files by name; empty if either side is missing.
    """
    if originals is None or not claims:
        return {}
    files = {"original.txt": originals, "reconstruction.txt": claims}
    return {
        name: "".join(" ".join(line.split()) + "\n" for line in text).encode(errors="replace")
        for name, text in files.items()
    }
