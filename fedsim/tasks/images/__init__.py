"""Image classification: what the clients hold, train on and are evaluated on."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn
from torch.nn import functional

from fedsim.errors import DataError
from fedsim.records import Batch, Reconstruction, Truth
from fedsim.spec import ImageSpec
from fedsim.task import evaluating
from fedsim.tasks.images.data import ImageData, load
from fedsim.tasks.images.pictures import side_by_side
from fedsim.tasks.models import FACTORY, MODELS, Architecture, as_architecture
from fedsim.tasks.models.cnn import CNN
from fedsim.tasks.models.factory import Classifier
from fedsim.tasks.partition import Iid, Partition, as_partition
from fedsim.tasks.partitioned import Labelled, claim_labels, divide, sample
from fedsim.victim import Loss

__all__ = ["Images"]

EVALUATED_AT_ONCE = 512


class Images(Labelled):
    """Image classification on digits, npz files or sets of the Hub.

    Inputs are (B, C, H, W) float32 in [0, 1], labels (B,) int64. Training examples are cut into
    an auxiliary share, which no client holds, and one share a client.

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

    name = "images"
    keywords = ("image classification", "vision", "pictures", "MNIST", "CIFAR")
    spec_type = ImageSpec
    models: ClassVar[Mapping[str, type[BaseModel]]] = {**MODELS, FACTORY: Classifier}
    sources: ClassVar[Mapping[str, str]] = {
        "digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn; built in",
        "NAME": "NAME.npz under --data: images and their labels",
        "hub:OWNER/SET[/CONFIG]": "A data set of the Hugging Face Hub with images and labels",
    }

    data: str = Field(default="digits", min_length=1)
    """ "digits", the stem of an npz under --data, or "hub:OWNER/SET[/CONFIG]"."""

    size: int | None = Field(default=None, ge=4, le=1024)
    """Height and width in pixels to resize images to."""

    auxiliary_from: Literal["train", "test"] = "train"
    """Split that auxiliary examples are taken from; "test": that share of the test examples,
    which no evaluation uses then."""

    partition: Annotated[SerializeAsAny[Partition], BeforeValidator(as_partition)] = Iid()
    """How data is cut, such as {kind = "dirichlet", alpha = 0.5}."""

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)] = CNN()
    """a name, a function of your own ("module:make"), or a table with either and settings."""

    classes: int | None = Field(default=None, ge=2)
    """Outputs of the model, where they are more than the data's labels."""

    # --- data -------------------------------------------------------------------------------

    @functools.cached_property
    def images(self) -> ImageData:
        """All images; loaded when first used."""
        return load(
            self.data,
            self.folder,
            size=self.size,
            test_fraction=self.test_fraction,
            seed=self.seed,
        )

    @property
    def labels(self) -> Tensor:
        """The labels of all images, int64 of shape (N,)."""
        return self.images.labels

    @functools.cached_property
    def held_out(self) -> tuple[Tensor, Tensor]:
        """Indices (int64) of the auxiliary examples, and of those left for the clients."""
        kept = sample(self.images.train, self.train_examples, self.seed, "training examples")
        if self.auxiliary_from == "test":
            return self._test_split[0], kept
        return divide(kept, self.auxiliary_fraction, self.seed)

    @functools.cached_property
    def _test_split(self) -> tuple[Tensor, Tensor]:
        """Indices of auxiliary examples among the test images, and of those that judge."""
        share = self.auxiliary_fraction if self.auxiliary_from == "test" else 0.0
        return divide(self.images.test, share, self.seed)

    @functools.cached_property
    def tested(self) -> Tensor:
        """Indices (int64) of the test examples."""
        return sample(self._test_split[1], self.test_examples, self.seed, "test examples")

    @functools.cached_property
    def shares(self) -> tuple[Tensor, ...]:
        """Indices (int64) of each client's examples."""
        rest = self.held_out[1]
        cut = self.partition.cut(self.images.labels[rest].numpy(), self.clients, self.seed)
        return tuple(rest[torch.tensor(share)] for share in cut)

    @property
    def outputs(self) -> int:
        """How many classes the model tells apart; raises `DataError` for fewer than labels."""
        if self.classes is not None and self.classes < self.images.classes:
            raise DataError(
                f"task.classes = {self.classes}, and data '{self.data}' has "
                f"{self.images.classes} labels; expected at least that many"
            )
        return self.classes or self.images.classes

    @property
    def spec(self) -> ImageSpec:
        """Classes, shape (C, H, W) and range of the images."""
        return ImageSpec(self.outputs, self.images.shape)

    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """`steps` batches, composed as the class says: a pure function of (seed, client, round).

        The first batches are the same however many steps are asked for. Raises `DataError` for a
        client that does not exist.
        """
        return [self._batch(index) for index in self.drawn(client, round, batch_size, steps)]

    def fingerprint(self) -> str:
        """SHA-256 of the images and labels."""
        return self.images.fingerprint()

    def auxiliary(self) -> Batch | None:
        """The training examples that no client holds, new tensors at every call; None if none."""
        index = self.held_out[0]
        return self._batch(index) if len(index) else None

    def _batch(self, index: Tensor) -> Batch:
        return Batch(inputs=self.images.inputs(index), labels=self.images.labels[index])

    # --- model ------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """A new model for these images, its weights drawn from torch's global generator."""
        return self.model.build(self.images.shape, self.outputs)

    @functools.cached_property
    def head(self) -> str:
        """Name of the final linear layer."""
        return self.model.find_head(self.module(), self.images.shape, self.outputs)

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
                labels = self.images.labels[part].to(device)
                logits = module(self.images.inputs(part).to(device))
                loss += float(functional.cross_entropy(logits, labels, reduction="sum"))
                hits += int((logits.argmax(dim=1) == labels).sum())
        total = len(index)
        return {"loss": loss / total, "accuracy": hits / total, "num_examples": float(total)}

    # --- what a reader sees -----------------------------------------------------------------

    @functools.cached_property
    def public(self) -> tuple[Tensor, Tensor]:
        """Label frequencies (classes,) and mean image (C, H, W) of the auxiliary examples."""
        index = self.held_out[0]
        counts = torch.bincount(self.images.labels[index], minlength=self.outputs)
        total = sum(
            (self.images.inputs(part).sum(dim=0) for part in torch.split(index, EVALUATED_AT_ONCE)),
            start=torch.zeros(self.images.shape),
        )
        return counts / counts.sum(), total / len(index)

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """As many labels and images as there are examples, drawn without having seen an update.

        Not informed: uniform labels, normal scores, and noise uniform in [0, 1]. Informed: labels
        and scores by the auxiliary examples' frequencies, and their mean image; raises
        `NotImplementedError` where there are none.
        """
        count = len(truth.labels) if truth.labels is not None else len(truth.inputs or ())
        shape, classes = self.images.shape, self.outputs
        if informed:
            if not len(self.held_out[0]):
                raise NotImplementedError("auxiliary_fraction leaves no public examples")
            frequencies, mean = self.public
            labels = torch.multinomial(frequencies, count, replacement=True, generator=rng)
            inputs, scores = [mean] * count, count * frequencies
        else:
            labels = torch.randint(classes, (count,), generator=rng)
            inputs = list(torch.rand(count, *shape, generator=rng))
            scores = torch.randn(classes, generator=rng)
        return claim_labels(labels, scores, inputs=inputs)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """A PNG: up to 16 originals in the top row, what was matched to each of them below.

        A grey tile stands for an original to which nothing was matched. No file where either
        side has no images.
        """
        if not claimed.inputs or not truth.inputs:
            return {}
        return {"reconstruction.png": side_by_side(claimed.inputs, truth.inputs)}


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
        raise ValueError(f"no point '{at}' to feed images at; there is 'input'")
    return functional.cross_entropy(module(inputs), target)
