"""Image classification: what the clients hold, train on and are evaluated on."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny
from torch import Tensor

from fedsim.records import Reconstruction, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.classification import Classification, cross_entropy
from fedsim.tasks.images.arrays import IMAGES
from fedsim.tasks.images.data import ImageData, load
from fedsim.tasks.images.pictures import side_by_side
from fedsim.tasks.local_data import names_in
from fedsim.tasks.models import FACTORY, MODELS, Architecture, as_architecture
from fedsim.tasks.models.cnn import CNN
from fedsim.tasks.models.factory import Classifier

__all__ = ["Images", "cross_entropy"]


class Images(Classification):
    """Image classification on digits, npz files or sets of the Hub.

    Inputs are (B, C, H, W) float32 in [0, 1], labels (B,) int64. Training examples are cut into
    an auxiliary share, which no client holds, and one share a client. See `Classification` for what
    a batch is composed of.
    """

    name = "images"
    keywords = ("image classification", "vision", "pictures", "MNIST", "CIFAR")
    spec_type = ImageSpec
    models: ClassVar[Mapping[str, type[BaseModel]]] = {**MODELS, FACTORY: Classifier}
    sources: ClassVar[Mapping[str, str]] = {
        "digits": "1,797 handwritten digits of 8 x 8 pixels, from scikit-learn; built in",
        "NAME": "NAME.npz under --data: images and their labels",
        "FOLDER": "Images in one subfolder a label: a folder under --data, or a path",
        "module:function": "A function of your own that returns images and labels",
        "hub:OWNER/SET[/CONFIG]": "A data set of the Hugging Face Hub with images and labels",
    }

    data: str = Field(default="digits", min_length=1)
    """Data set: "digits" (embedded), the stem of an npz file or a folder of images in the folder of
    --data, a path, "module:function", or
    "hub:OWNER/SET[/CONFIG]"."""

    size: int | None = Field(default=None, ge=4, le=1024)
    """Height and width in pixels that images are resized to; by default they are left as they are.
    """

    model: Annotated[SerializeAsAny[Architecture], BeforeValidator(as_architecture)] = CNN()
    """Model to train: a name, a function of your own ("module:make"), or a table with either and
    its settings."""

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """The npz files and the folders of images in a folder."""
        return names_in(folder, inside="images", endings=[".npz"], labelled=IMAGES)

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
    def examples(self) -> ImageData:
        """The images."""
        return self.images

    @property
    def spec(self) -> ImageSpec:
        """The number of classes and the shape (C, H, W) of the images."""
        return ImageSpec(self.outputs, self.images.shape)

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Images (count, C, H, W) uniform in [0, 1]."""
        return torch.rand(count, *self.images.shape, generator=rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """A PNG of up to 16 originals, with what was matched to each of them below it.

        A grey tile stands below an original to which nothing was matched. There is no file if
        either side has no images.
        """
        if not claimed.inputs or not truth.inputs:
            return {}
        return {"reconstruction.png": side_by_side(claimed.inputs, truth.inputs)}
