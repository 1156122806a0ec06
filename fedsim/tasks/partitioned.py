"""Tasks whose training examples are divided among clients, and what a client's batches are."""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import PROBES, Batch, Reconstruction
from fedsim.seeds import torch_generator
from fedsim.task import Task
from fedsim.tasks.composition import Composition as Composition
from fedsim.tasks.composition import balanced as balanced
from fedsim.tasks.composition import compose as compose
from fedsim.tasks.composition import in_epochs as in_epochs
from fedsim.tasks.composition import natural as natural
from fedsim.tasks.composition import unbalanced as unbalanced
from fedsim.tasks.partition import Indices, Samples


class Partitioned(Task):
    """A task with a fixed set of training examples, each held by at most one client."""

    test_examples: int | None = Field(default=None, ge=1)
    """Number of test examples to use, drawn by the seed; by default all."""

    test_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of examples in the test split of data that has no split of its own."""

    auxiliary_fraction: float = Field(default=0.1, ge=0, lt=1)
    """Share of training examples that no client holds; they are the auxiliary data."""

    batching: Literal["draw", "epochs"] = "draw"
    """How a client's batches follow each other, as `training.batching` says: every round draws
    batches of its own ("draw"), or continues through shuffled epochs ("epochs")."""

    @property
    @abstractmethod
    def shares(self) -> Sequence[Tensor]:
        """For each client the indices of its examples, int64."""

    def num_examples(self, client: int) -> int:
        """How many training examples a client holds.

        Raises:
            DataError: There is no such client.
        """
        self._known(client)
        shares = self.shares
        return shares.samples.size if isinstance(shares, Resampled) else len(shares[client])

    def share(self, client: int) -> Tensor:
        """The indices of a client's examples, int64 of shape (n,).

        Raises:
            DataError: There is no such client.
        """
        self._known(client)
        return self.shares[client]

    def _known(self, client: int) -> None:
        if not 0 <= client < self.clients:
            raise DataError(
                f"there is no client {client}; clients run from 0 to {self.clients - 1}"
            )

    def cautions(self) -> list[str]:
        """That clients share examples, where they are resampled."""
        shares = self.shares
        if not isinstance(shares, Resampled):
            return super().cautions()
        return [
            *super().cautions(),
            f'task.partition = "resample": {len(shares)} clients have samples of '
            f"{shares.samples.size} of the same {shares.samples.examples} examples each, so that "
            "several clients hold one example",
        ]

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

        Drawn batches are the first ones of those for a larger number of steps.

        Args:
            client: Number of the client, from 0.
            round: Number of the round, from 1.
            batch_size: Number of examples in a batch; fewer if the client has fewer, or if an epoch
                ends.
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
            round: The round; the batches of a probe are in no epoch, and always drawn.
            batch_size: Examples in a batch, if the client has as many, and the epoch.
            steps: The number of batches.

        Returns:
            The indices of each batch's examples, `steps` tensors int64.

        Raises:
            DataError: There is no such client.
        """
        share = self.share(client)
        size = min(batch_size, len(share))
        if self.batching == "epochs" and round < PROBES:
            done = (round - 1) * steps  # in rounds without this client, too
            batches = in_epochs(len(share), size, range(done, done + steps), self.seed, client)
        else:
            rng = torch_generator(self.seed, "batches", client, round)
            batches = self._composed(share, size, steps, rng)
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

    @model_validator(mode="after")
    def _composed_by_draws(self) -> Self:
        if self.batching == "epochs" and self.composition != "natural":
            raise ValueError(
                f'composition = "{self.composition}" draws every batch by its labels, and '
                'training.batching = "epochs" takes each example once an epoch. Leave one of them '
                "out"
            )
        return self

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


@dataclass(frozen=True)
class Resampled(Sequence[Tensor]):
    """The examples of each client under `partition = "resample"`, made when they are taken.

    Attributes:
        examples: The examples that are drawn from, int64.
        samples: The positions in `examples` of each client's examples.
    """

    examples: Tensor
    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, client: Any) -> Any:
        return self.examples[torch.from_numpy(self.samples[client])]


def shares_of(index: Tensor, cut: Sequence[Indices]) -> Sequence[Tensor]:
    """The examples of each client.

    Args:
        index: The examples that clients hold, int64.
        cut: The positions in `index` of each client's examples, as `Partition.cut` returns them.
    """
    if isinstance(cut, Samples):
        return Resampled(index, cut)
    return tuple(index[torch.from_numpy(share)] for share in cut)


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
