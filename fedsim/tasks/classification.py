"""Classification of inputs of one shape: what the tasks of images and of tables share."""

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn
from torch.nn import functional

from fedsim.errors import DataError
from fedsim.records import Batch, Reconstruction, Truth
from fedsim.task import evaluating
from fedsim.tasks.models import Architecture, as_architecture
from fedsim.tasks.partition import Iid, Partition, as_partition
from fedsim.tasks.partitioned import Labelled, claim_labels, divide, sample
from fedsim.victim import Loss

__all__ = ["Classification", "Examples", "cross_entropy"]

EVALUATED_AT_ONCE = 512


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Examples(ABC):
    """Labelled examples, all splits together.

    Attributes:
        labels: Their labels, int64 of shape (N,) in [0, classes).
        train: Indices of the training split, int64.
        test: Indices of the test split, int64.
        classes: The number of labels.
    """

    labels: Tensor
    train: Tensor
    test: Tensor
    classes: int

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @abstractmethod
    def inputs(self, index: Tensor) -> Tensor:
        """The inputs with these indices, float32 of shape (n, *shape)."""

    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of the examples as stored; the split does not enter it."""


class Classification(Labelled):
    """A classifier of inputs of one shape, trained with cross-entropy.

    A client's batches in a round, with n examples of its own and B = min(batch_size, n):

    - natural: slices of B from a random permutation of its examples, in which none repeats; when
      fewer than B are left, they are skipped and a new permutation begins.
    - unbalanced (LLG, section 5): B // 2 examples of one label, B // 4 of another where it has
      one, the rest drawn from all its other examples. Both labels are drawn once a round, so that
      several local steps are as unbalanced together as each of them.
    - balanced: its labels in random order, one example of each in turn until there are B, so that
      counts differ by at most one.

    In the last two an example repeats within a batch only where a label has too few.
    """

    data: str = Field(min_length=1)
    """The name of the data set."""

    auxiliary_from: Literal["train", "test"] = "train"
    """Split that auxiliary examples are taken from; "test": that share of the test examples,
    which no evaluation uses then."""

    partition: Annotated[SerializeAsAny[Partition], BeforeValidator(as_partition)] = Iid()
    """How data is cut, such as {kind = "dirichlet", alpha = 0.5}."""

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)]
    """a name, a function of your own ("module:make"), or a table with either and settings."""

    classes: int | None = Field(default=None, ge=2)
    """Outputs of the model, where they are more than the data's labels."""

    # --- data -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def examples(self) -> Examples:
        """All examples."""

    @property
    def labels(self) -> Tensor:
        """The labels of all examples, int64 of shape (N,)."""
        return self.examples.labels

    @functools.cached_property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """Indices (int64) of the auxiliary examples, and of those left for the clients."""
        kept = sample(self.examples.train, self.train_examples, self.seed, "training examples")
        if self.auxiliary_from == "test":
            return self._test_split[0], kept
        return divide(kept, self.auxiliary_fraction, self.seed)

    @functools.cached_property
    def _test_split(self) -> tuple[Tensor, Tensor]:
        """Indices of auxiliary examples among the test examples, and of those that judge."""
        share = self.auxiliary_fraction if self.auxiliary_from == "test" else 0.0
        return divide(self.examples.test, share, self.seed)

    @functools.cached_property
    def tested(self) -> Tensor:
        """Indices (int64) of the test examples."""
        return sample(self._test_split[1], self.test_examples, self.seed, "test examples")

    @functools.cached_property
    def shares(self) -> tuple[Tensor, ...]:
        """Indices (int64) of each client's examples."""
        rest = self.held_out[1]
        cut = self.partition.cut(self.examples.labels[rest].numpy(), self.clients, self.seed)
        return tuple(rest[torch.tensor(share)] for share in cut)

    @property
    def outputs(self) -> int:
        """How many classes the model tells apart; raises `DataError` for fewer than labels."""
        if self.classes is not None and self.classes < self.examples.classes:
            raise DataError(
                f"task.classes = {self.classes}, and data '{self.data}' has "
                f"{self.examples.classes} labels; expected at least that many"
            )
        return self.classes or self.examples.classes

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """`steps` batches, composed as the class says: a pure function of (seed, client, round).

        The first batches are the same however many steps are asked for. Raises `DataError` for a
        client that does not exist.
        """
        return [self._batch(index) for index in self.drawn(client, round, batch_size, steps)]

    def fingerprint(self) -> str:
        """SHA-256 of the inputs and labels."""
        return self.examples.fingerprint()

    def auxiliary(self) -> Batch | None:
        """The training examples that no client holds, new tensors at every call; None if none."""
        index = self.held_out[0]
        return self._batch(index) if len(index) else None

    def _batch(self, index: Tensor) -> Batch:
        return Batch(inputs=self.examples.inputs(index), labels=self.examples.labels[index])

    # --- model ------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """A new model, its weights drawn from torch's global generator."""
        shape = self.examples.shape
        if self.model.images_only and len(shape) != 3:
            raise DataError(
                f"task.model = '{self.model.name}' takes images, and the inputs of task "
                f"'{self.name}' have the shape {shape}. Use mlp"
            )
        return self.model.build(shape, self.outputs)

    @functools.cached_property
    def head(self) -> str:
        """Name of the final linear layer."""
        return self.model.find_head(self.module(), self.examples.shape, self.outputs)

    @property
    def loss(self) -> Loss:
        """Cross-entropy, mean over examples; target (B,) int64, or soft (B, classes)."""
        return cross_entropy

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Mean loss and accuracy on the test split, or on all of one client's examples.

        The module is evaluated in evaluation mode, on its own device, and gets its modes back.
        """
        index = self.tested if client is None else self.share(client)
        loss = hits = 0.0
        with evaluating(module) as device:
            for part in torch.split(index, EVALUATED_AT_ONCE):
                labels = self.examples.labels[part].to(device)
                logits = module(self.examples.inputs(part).to(device))
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
                hits += int((logits.argmax(dim=1) == labels).sum())
        total = len(index)
        return {"loss": loss / total, "accuracy": hits / total, "num_examples": float(total)}

    # --- what a reader sees -----------------------------------------------------------------

    @functools.cached_property
    def public(self) -> tuple[Tensor, Tensor]:
        """Label frequencies (classes,) and the mean input of the auxiliary examples."""
        index = self.held_out[0]
        counts = torch.bincount(self.examples.labels[index], minlength=self.outputs)
        total = sum(
            (
                self.examples.inputs(part).sum(dim=0)
                for part in torch.split(index, EVALUATED_AT_ONCE)
            ),
            start=torch.zeros(self.examples.shape),
        )
        return counts / counts.sum(), total / len(index)

    @abstractmethod
    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Random inputs of shape (count, *shape), as a guess that knows nothing has them."""

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """As many labels and inputs as there are examples, drawn without having seen an update.

        Not informed: uniform labels, normal scores, and `noise`. Informed: labels and scores by the
        auxiliary examples' frequencies, and their mean input; raises `NotImplementedError` where
        there are none.
        """
        count = len(truth.labels) if truth.labels is not None else len(truth.inputs or ())
        if informed:
            if not len(self.held_out[0]):
                raise NotImplementedError("auxiliary_fraction leaves no public examples")
            frequencies, mean = self.public
            labels = torch.multinomial(frequencies, count, replacement=True, generator=rng)
            inputs, scores = [mean] * count, count * frequencies
        else:
            labels = torch.randint(self.outputs, (count,), generator=rng)
            inputs = list(self.noise(count, rng))
            scores = torch.randn(self.outputs, generator=rng)
        return claim_labels(labels, scores, inputs=inputs)


def cross_entropy(
    module: nn.Module,
    inputs: Tensor,
    target: Tensor,
    *,
    lengths: Any = None,
    at: str = "input",
) -> Tensor:
    """Mean cross-entropy of a classifier; target (B,) int64, or soft (B, classes)."""
    if at != "input":
        raise ValueError(f"no point '{at}' to feed inputs at; there is 'input'")
    return functional.cross_entropy(module(inputs), target)
