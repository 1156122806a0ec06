"""Image classification: what the clients hold, train on and are evaluated on."""

import functools
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny
from torch import Tensor
from torch.nn import functional

from fedsim.metrics import match
from fedsim.metrics.features import matched
from fedsim.records import Reconstruction, Truth
from fedsim.spec import ImageSpec
from fedsim.tasks.classification import Classification, cross_entropy
from fedsim.tasks.images.arrays import IMAGES
from fedsim.tasks.images.data import ImageData, load
from fedsim.tasks.local_data import names_in
from fedsim.tasks.models import FACTORY, MODELS, Architecture, as_architecture
from fedsim.tasks.models.cnn import CNN
from fedsim.tasks.models.factory import Classifier

__all__ = ["Images", "cross_entropy"]

TILES = 16
TILE = 96
GAP = 4
"""Number of originals in a picture, and the smallest side of each and the gap between them in
pixels."""

DARK = 0.2
"""Share of white below which the brightest pixel tells that images are stored in another range."""


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
        "digits": "1,797 handwritten digits of 8 x 8 pixels, of the UCI repository; built in",
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
    def examples(self) -> ImageData:
        """The images, which are loaded when first used."""
        return load(
            self.data, self.folder, size=self.size, test_fraction=self.test_fraction, seed=self.seed
        )

    @property
    def spec(self) -> ImageSpec:
        """The number of classes and the shape (C, H, W) of the images."""
        return ImageSpec(self.outputs, self.examples.shape)

    def cautions(self) -> list[str]:
        """Those of every task, and images that are nearly black."""
        found, data = super().cautions(), self.examples
        some = data.pixels[:: max(1, len(data.pixels) // 1000)]
        if not (brightest := float(some.max())):
            found.append(f"data '{self.data}': images are black: nothing of them can be learned")
        elif brightest < DARK * data.white:
            found.append(
                f"data '{self.data}': images are nearly black, with values up to {brightest:g} of "
                f"{data.white:g}. If {brightest:g} means white, store values / {brightest:g} as "
                "floats"
            )
        return found

    def noise(self, count: int, rng: torch.Generator) -> Tensor:
        """Images (count, C, H, W) uniform in [0, 1]."""
        return torch.rand(count, *self.examples.shape, generator=rng)

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """A PNG of up to 16 originals, with what was matched to each of them below it.

        If features are claimed instead of images, the public image with the nearest features
        stands there (`reconstruction-nearest.png`). A grey tile stands below an original to which
        nothing was matched. There is no file if either side has no images.
        """
        if not truth.inputs:
            return {}
        if claimed.inputs:
            return {"reconstruction.png": side_by_side(claimed.inputs, truth.inputs)}
        if claimed.features is None or truth.features is None or truth.candidates is None:
            return {}
        found, pool = matched(claimed, truth.features), truth.candidates
        public = pool.features[: len(pool.public)].detach().cpu().double()
        nearest = torch.cdist(found, public).argmin(dim=1).tolist()
        below = [
            pool.public[at] if row.isfinite().all() else None
            for row, at in zip(found, nearest, strict=True)
        ]
        return {"reconstruction-nearest.png": sheet(truth.inputs, below)}


def side_by_side(claims: Sequence[Tensor], originals: Sequence[Tensor]) -> bytes:
    """Draw up to 16 originals in the top row and the reconstruction of each below it.

    Args:
        claims: Reconstructed images of shape (C, H, W) in [0, 1], C 1 or 3.
        originals: The true images. A grey tile stands below those that have no reconstruction.

    Returns:
        The PNG file.
    """
    truth = torch.stack([image.detach().cpu().float() for image in originals])
    found = [image.detach().cpu().float() for image in claims]
    return sheet(originals, [found[i] if i >= 0 else None for i in match(found, truth)])


def sheet(originals: Sequence[Tensor], below: Sequence[Tensor | None]) -> bytes:
    """Draw up to 16 originals in the top row and another image below each.

    Args:
        originals: Images of shape (C, H, W) in [0, 1], C 1 or 3.
        below: An image of that shape for each, or None for a grey tile.

    Returns:
        The PNG file.
    """
    from PIL import Image

    top = [image.detach().cpu().float() for image in originals][:TILES]
    pairs = zip(top, below, strict=False)
    grey = [torch.full_like(a, 0.5) if b is None else b.detach().cpu().float() for a, b in pairs]
    tiles = torch.stack([torch.stack(top), torch.stack(grey)])
    times = max(1, math.ceil(TILE / min(tiles.shape[-2:])))
    tiles = tiles.clamp(0, 1).repeat_interleave(times, dim=3).repeat_interleave(times, dim=4)
    # From (row, tile, C, H, W) to (height, width, C) of the whole picture, with white gaps.
    rows = functional.pad(tiles, (0, GAP, 0, GAP), value=1.0).permute(0, 3, 1, 4, 2)
    whole = functional.pad(rows.flatten(2, 3).flatten(0, 1), (0, 0, GAP, 0, GAP, 0), value=1.0)
    pixels = (whole.expand(-1, -1, 3) * 255).round().to(torch.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(stream, format="PNG")
    return stream.getvalue()
