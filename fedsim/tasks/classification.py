"""Base class of classification tasks with inputs of one shape: images and tables."""

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
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
from fedsim.tasks.partitioned import Labelled, claim_labels, divide, sample, shares_of
from fedsim.victim import Loss

EVALUATED_AT_ONCE = 512
"""Number of examples in a batch of an evaluation."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Examples(ABC):
    """Labelled examples of all splits.

    Attributes:
        labels: Labels in [0, classes), int64 of shape (N,).
        train: Indices of the training split, int64.
        test: Indices of the test split, int64.
        classes: Number of classes.
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
        """Return inputs by their indices.

        Args:
            index: Indices, int64 of shape (n,).

        Returns:
            Inputs, float32 of shape (n, *shape).
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of the stored examples, which does not depend on the split."""


class Classification(Labelled):
    """A classifier of inputs of one shape, trained with cross-entropy.

    A batch of a client with n examples has B = min(batch_size, n) of them. The composition is:

    - natural: Batches are slices of a random permutation of the client's examples, so that none
      repeats. If fewer than B are left, they are skipped, and a new permutation begins.
    - unbalanced (LLG, section 5): A batch has B // 2 examples of one label, B // 4 of another one
      if the client has several, and the rest from the client's other examples. Both labels are
      drawn once a round, so that all local steps together are as unbalanced as each of them.
    - balanced: A batch takes one example of each of the client's labels in turn, in random order,
      until there are B, so that counts differ by at most one.

    In the last two, an example repeats within a batch only if its label has too few examples.
    """

    data: str = Field(min_length=1)
    """Name of the data set."""

    auxiliary_from: Literal["train", "test"] = "train"
    """Split from which auxiliary examples are taken. With "test" they are a share
    `auxiliary_fraction` of the test examples, and evaluations do not use these."""

    partition: Annotated[SerializeAsAny[Partition], BeforeValidator(as_partition)] = Iid()
    """How examples are divided among clients, such as {kind = "dirichlet", alpha = 0.5}."""

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)]
    """Model to train: a name, a function of your own ("module:make"), or a table with either and
    its settings."""

    classes: int | None = Field(default=None, ge=2)
    """Number of outputs of the model, if it is larger than the data's number of classes."""

    @property
    @abstractmethod
    def examples(self) -> Examples:
        """All examples."""

    @property
    def labels(self) -> Tensor:
        """Labels of all examples, int64 of shape (N,)."""
        return self.examples.labels

    @functools.cached_property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """Indices of the auxiliary examples and of those left for the clients, int64."""
        kept = sample(self.examples.train, self.train_examples, self.seed, "training examples")
        if self.auxiliary_from == "test":
            return self._test_split[0], kept
        return divide(kept, self.auxiliary_fraction, self.seed)

    @functools.cached_property
    def _test_split(self) -> tuple[Tensor, Tensor]:
        """Indices of the test examples that are auxiliary, and of those that evaluations use."""
        share = self.auxiliary_fraction if self.auxiliary_from == "test" else 0.0
        return divide(self.examples.test, share, self.seed)

    @functools.cached_property
    def tested(self) -> Tensor:
        """Indices of the test examples that evaluations use, int64."""
        return sample(self._test_split[1], self.test_examples, self.seed, "test examples")

    @functools.cached_property
    def shares(self) -> Sequence[Tensor]:
        """Indices of each client's examples, int64."""
        rest = self.held_out[1]
        cut = self.partition.cut(self.examples.labels[rest].numpy(), self.clients, self.seed)
        return shares_of(rest, cut)

    @property
    def outputs(self) -> int:
        """Number of the model's outputs.

        Raises:
            DataError: The setting `classes` is smaller than the data's number of classes.
        """
        if self.classes is not None and self.classes < self.examples.classes:
            raise DataError(
                f"task.classes = {self.classes}, and data '{self.data}' has "
                f"{self.examples.classes} labels; expected at least that many"
            )
        return self.classes or self.examples.classes

    def fingerprint(self) -> str:
        """Return the SHA-256 of inputs and labels."""
        return self.examples.fingerprint()

    def auxiliary(self) -> Batch | None:
        """Return the auxiliary examples, which no client holds; None if there are none.

        Tensors are new at every call.
        """
        index = self.held_out[0]
        return self.batch(index) if len(index) else None

    def batch(self, index: Tensor, rng: torch.Generator | None = None) -> Batch:
        """Return inputs and labels of examples by their indices, int64 of shape (B,)."""
        return Batch(inputs=self.examples.inputs(index), labels=self.examples.labels[index])

    def build(self) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator."""
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
        """Cross-entropy, mean over examples: `cross_entropy`."""
        return cross_entropy

    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Compute mean loss and accuracy on the test split or on one client's examples.

        Args:
            module: The model. It is in evaluation mode meanwhile, and stays on its device.
            client: Number of the client; None for the test split.

        Returns:
            "loss", "accuracy" and "num_examples".
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

    @functools.cached_property
    def public(self) -> tuple[Tensor, Tensor]:
        """Label frequencies (classes,) and the mean input of the auxiliary examples."""
        index = self.held_out[0]
        counts = torch.bincount(self.examples.labels[index], minlength=self.outputs)
        total = torch.zeros(self.examples.shape)
        for part in torch.split(index, EVALUATED_AT_ONCE):
            total += self.examples.inputs(part).sum(dim=0)
        return counts / counts.sum(), total / len(index)

    @abstractmethod
    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw the inputs of an uninformed guess, of shape (count, *shape)."""

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """Guess as many labels and inputs as there are examples.

        Labels are uniform, scores standard normal, and inputs `noise`. In an informed guess, labels
        and scores follow the frequencies among auxiliary examples, and inputs are their mean.

        Args:
            truth: The client's examples, of which only the number is used.
            rng: Generator on the CPU.
            informed: Whether to use auxiliary examples.

        Raises:
            NotImplementedError: The guess is informed, and there are no auxiliary examples.
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
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Compute the cross-entropy of a classifier, mean over examples.

    Args:
        module: The model.
        inputs: Inputs of shape (B, ...).
        target: Labels, int64 of shape (B,), or soft labels of shape (B, classes).
        lengths: Not used.
        at: Always "input".
    """
    if at != "input":
        raise ValueError(f"no point '{at}' to feed inputs at; there is 'input'")
    return functional.cross_entropy(module(inputs), target)
