"""Image data sets: the digits of digits.npz, npz files, folders of images, the Hub, or your own."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedsim.errors import DataError
from fedsim.libraries import HUB
from fedsim.references import is_reference
from fedsim.seeds import numpy_generator
from fedsim.tasks.classification import Examples
from fedsim.tasks.images.arrays import (
    EXPECTED,
    Arrays,
    checked,
    decoded,
    folder_arrays,
    joined,
    labelled,
    own_arrays,
)
from fedsim.tasks.images.npz import npz_arrays
from fedsim.tasks.local_data import find_file, find_path, hub_splits
from fedsim.tasks.partitioned import sha256

RESIZED = 32 * 2**20
"""Largest number of bytes of images that are resized when they are loaded."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ImageData(Examples):
    """Labelled images, all splits together.

    Attributes:
        pixels: Images as stored, of shape (N, C, H, W), from 0 to `white`.
        white: The value of a white pixel.
        size: Height and width that images are resized to, in pixels; None to leave them.
        label_names: The names of the labels; empty if there are none.
        resized: All inputs, if they were resized beforehand; see `resized_at_once`.
    """

    pixels: Tensor
    white: float = 1.0
    size: int | None = None
    label_names: tuple[str, ...] = ()
    resized: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        channels, height, width = self.pixels.shape[1:]
        return (channels, self.size or height, self.size or width)

    def inputs(self, index: Tensor) -> Tensor:
        """Inputs, float32 of shape (n, C, H, W) in [0, 1], resized bilinearly if `size` is set."""
        if self.resized is not None:
            return self.resized[index]
        images = self.pixels[index].to(torch.float32) / self.white
        if images.shape[1:] == self.shape:
            return images
        shrink = self.shape[1] < images.shape[2] or self.shape[2] < images.shape[3]
        resized = functional.interpolate(
            images, size=self.shape[1:], mode="bilinear", align_corners=False, antialias=shrink
        )
        return resized.clamp(0, 1)

    def resized_at_once(self) -> "ImageData":
        """The same data with all inputs resized, if they take no more than `RESIZED` bytes.

        Resizing a batch of a small model takes a twentieth of its training step.
        """
        total = len(self.pixels)
        same = self.pixels.shape[1:] == self.shape
        if same or 4 * total * math.prod(self.shape) > RESIZED:
            return self
        return replace(self, resized=self.inputs(torch.arange(total)))

    def fingerprint(self) -> str:
        """SHA-256 of the stored images and labels; neither the split nor the size enters it."""
        return sha256((tuple(self.pixels.shape), self.white), self.pixels, self.labels)


def load(
    name: str, folder: Path | None, *, size: int | None, test_fraction: float, seed: int
) -> ImageData:
    """Load images by name. Only a "hub:" name uses the network.

    Args:
        name: "digits", the stem of an npz file, a folder of images or its path,
            "hub:OWNER/SET[/CONFIG]", or "module:function".
        folder: Where npz files and folders are looked up.
        size: Height and width to resize to, in pixels.
        test_fraction: The share that becomes the test split if the source has none.
        seed: Draws that test split.

    Raises:
        DataError: The data is missing, cannot be read, or has the wrong shape.
    """
    if name == "digits":
        found = _digits()
    elif name.startswith(HUB):
        found = _hub(name, size)
    elif is_reference(name):
        found = own_arrays(name)
    elif (place := find_path(name, folder, inside="images")) is not None and place.is_dir():
        found = folder_arrays(place, size)
    else:
        path = find_file(name, folder, inside="images", endings=[".npz"], built_in="digits")
        found = npz_arrays(path, path.stat().st_mtime_ns)
    classes = labelled(found.y, found.label_names, f"data '{name}'")
    total = len(found.y)
    order = np.arange(total)
    tests = found.tests
    if tests is None:
        order = numpy_generator(seed, "test split").permutation(total)
        tests = max(1, round(test_fraction * total))
    if tests >= total:
        raise DataError(f"data '{name}' has {total} examples, too few for a train and a test split")
    data = ImageData(
        pixels=torch.from_numpy(np.ascontiguousarray(found.x)),
        labels=torch.from_numpy(found.y.astype(np.int64)),
        train=torch.from_numpy(np.sort(order[:-tests])),
        test=torch.from_numpy(np.sort(order[-tests:])),
        classes=classes,
        white=found.white,
        size=size,
        label_names=found.label_names,
    )
    return data.resized_at_once()


def _digits() -> Arrays:
    """The 1,797 digits that are part of fedsim; digits.txt names their source and licence."""
    with np.load(Path(__file__).with_name("digits.npz")) as stored:
        return Arrays(
            x=stored["x"],
            y=stored["y"].astype(np.int64),
            tests=None,
            white=16.0,
            label_names=tuple(map(str, range(10))),
        )


def _hub(name: str, size: int | None) -> Arrays:
    import datasets

    loaded = hub_splits(name, f"as an npz under --data and name that: {EXPECTED}")
    train = "train" if "train" in loaded else next(iter(loaded))
    test = next((key for key in ("test", "validation", "valid") if key in loaded), None)
    features = loaded[train].features
    images = [key for key, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        raise DataError(
            f"data '{name}' has columns {dict(features)}; expected an Image and a ClassLabel"
        )
    known = [key for key in ("label", "labels", "fine_label") if key in labels]
    label = (known or labels)[0]
    parts = []
    for split in dict.fromkeys(key for key in (train, test) if key is not None):
        x = decoded(loaded[split][images[0]], size, f"{name} ({split})")
        parts.append(checked(x, np.asarray(loaded[split][label]), f"{name} ({split})"))
    return joined(parts, tuple(features[label].names), name)
