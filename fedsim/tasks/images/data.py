"""Image data sets: scikit-learn's digits, npz files in a folder, or data sets of the Hub."""

import functools
import hashlib
import itertools
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fedsim.errors import DataError
from fedsim.libraries import HUB
from fedsim.seeds import numpy_generator
from fedsim.tasks.classification import Examples
from fedsim.tasks.hub import splits
from fedsim.tasks.local_data import find_file

__all__ = ["ImageData", "load"]

NAMES = ("label_names", "fine_label_names", "names")
EXPECTED = (
    "x_train, y_train, x_test and y_test, or x and y: images uint8 (N, H, W) or "
    "(N, H, W, C) with 1 or 3 channels, or floats in [0, 1] so shaped; labels integers (N,)"
)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ImageData(Examples):
    """Labelled images, all splits together.

    Attributes:
        pixels: Images as stored, of shape (N, C, H, W), from 0 to `white`.
        white: The value of a white pixel.
        size: Height and width that images are resized to, in pixels; None to leave them.
        label_names: The names of the labels; empty if there are none.
    """

    pixels: Tensor
    white: float = 1.0
    size: int | None = None
    label_names: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an input."""
        channels, height, width = self.pixels.shape[1:]
        return (channels, self.size or height, self.size or width)

    def inputs(self, index: Tensor) -> Tensor:
        """Inputs, float32 of shape (n, C, H, W) in [0, 1], resized bilinearly if `size` is set."""
        images = self.pixels[index].to(torch.float32) / self.white
        if images.shape[1:] == self.shape:
            return images
        shrink = self.shape[1] < images.shape[2] or self.shape[2] < images.shape[3]
        resized = functional.interpolate(
            images, size=self.shape[1:], mode="bilinear", align_corners=False, antialias=shrink
        )
        return resized.clamp(0, 1)

    def fingerprint(self) -> str:
        """SHA-256 of the stored images and labels; neither the split nor the size enters it."""
        digest = hashlib.sha256(repr((tuple(self.pixels.shape), self.white)).encode())
        for tensor in (self.pixels, self.labels):
            digest.update(tensor.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Arrays:
    """The checked content of a source.

    Attributes:
        x: Images of shape (N, C, H, W).
        y: Labels of shape (N,).
        tests: How many examples at the end are the test split; None if the source has none.
        white: The value of a white pixel.
        label_names: The names of the labels.
    """

    x: Array
    y: Array
    tests: int | None
    white: float
    label_names: tuple[str, ...] = ()


def load(
    name: str, folder: Path | None, *, size: int | None, test_fraction: float, seed: int
) -> ImageData:
    """Load images by name. Only a "hub:" name uses the network.

    Args:
        name: "digits", the stem of an npz file, or "hub:OWNER/SET[/CONFIG]".
        folder: Where npz files are looked up.
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
    else:
        path = find_file(name, folder, inside="images", endings=[".npz"], built_in="digits")
        found = _npz(path, path.stat().st_mtime_ns)
    classes = len(found.label_names) or int(found.y.max()) + 1
    if int(found.y.min()) < 0 or int(found.y.max()) >= classes:
        raise DataError(
            f"data '{name}' has labels from {found.y.min()} to {found.y.max()}, expected "
            f"0 to {classes - 1}" + (": it names that many classes" if found.label_names else "")
        )
    present = set(found.y.tolist())
    if len(present) < classes and not found.label_names:
        missing = list(itertools.islice((n for n in range(classes) if n not in present), 6))
        named = ", ".join(map(str, missing[:5])) + (" and others" if len(missing) > 5 else "")
        raise DataError(
            f"data '{name}' has labels from 0 to {found.y.max()}, but no example with {named}. "
            "Number classes from 0 without gaps, or name them all in label_names"
        )
    if classes < 2:
        raise DataError(f"data '{name}' has a single label; a classifier needs two")
    total = len(found.y)
    order = np.arange(total)
    tests = found.tests
    if tests is None:
        order = numpy_generator(seed, "test split").permutation(total)
        tests = max(1, round(test_fraction * total))
    if tests >= total:
        raise DataError(f"data '{name}' has {total} examples, too few for a train and a test split")
    return ImageData(
        pixels=torch.from_numpy(np.ascontiguousarray(found.x)),
        labels=torch.from_numpy(found.y.astype(np.int64)),
        train=torch.from_numpy(np.sort(order[:-tests])),
        test=torch.from_numpy(np.sort(order[-tests:])),
        classes=classes,
        white=found.white,
        size=size,
        label_names=found.label_names,
    )


def _digits() -> _Arrays:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _Arrays(
        x=digits.images.astype(np.uint8)[:, None],
        y=digits.target,
        tests=None,
        white=16.0,
        label_names=tuple(str(name) for name in digits.target_names),
    )


@functools.lru_cache(maxsize=2)
def _npz(path: Path, written: int) -> _Arrays:
    """The content of an npz file, read once in a process and never written to.

    Args:
        path: The file.
        written: When it was last changed, so that a changed file is read again.
    """
    try:
        # Opened here, because numpy leaves a file open that turns out to be no archive.
        with path.open("rb") as file, np.load(_zip(file), allow_pickle=False) as stored:
            split = {"x_train", "y_train", "x_test", "y_test"} <= set(stored.files)
            if not split and not {"x", "y"} <= set(stored.files):
                raise DataError(
                    f"{path} holds {', '.join(stored.files) or 'nothing'}; expected {EXPECTED}"
                )
            parts = [("x_train", "y_train"), ("x_test", "y_test")] if split else [("x", "y")]
            read = [_checked(stored[x], stored[y], f"{path} ({x}, {y})") for x, y in parts]
            names = next((stored[key] for key in NAMES if key in stored.files), ())
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return _joined(read, tuple(str(name) for name in names), str(path))


def _zip(file: BinaryIO) -> BinaryIO:
    """The file, if it is a zip archive; numpy would take any other for a pickle."""
    if not zipfile.is_zipfile(file):
        raise ValueError(f"it is no npz file; expected one with {EXPECTED}")
    file.seek(0)
    return file


def _checked(x: Array, y: Array, where: str) -> tuple[Array, Array]:
    """Validate images, returned as (N, C, H, W) uint8 or float32, and labels of shape (N,)."""
    found = f"{where}: images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}; expected {EXPECTED}"
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or x.shape[3] not in (1, 3) or 0 in x.shape:
        raise DataError(found)
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise DataError(found)
    if x.dtype.kind == "f":
        if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
            raise DataError(f"{found}; these floats run from {x.min()} to {x.max()}")
        x = x.astype(np.float32)
    elif x.dtype != np.uint8:
        raise DataError(found)
    return x.transpose(0, 3, 1, 2), y.astype(np.int64)


def _joined(parts: list[tuple[Array, Array]], names: tuple[str, ...], where: str) -> _Arrays:
    images = [x for x, _ in parts]
    if len({(x.shape[1:], x.dtype) for x in images}) > 1:
        shown = " and ".join(f"{x.dtype} {x.shape}" for x in images)
        raise DataError(f"{where}: train and test images differ in shape or type: {shown}")
    return _Arrays(
        x=np.concatenate(images),
        y=np.concatenate([y for _, y in parts]),
        tests=len(parts[1][1]) if len(parts) > 1 else None,
        white=255.0 if images[0].dtype == np.uint8 else 1.0,
        label_names=names,
    )


def _hub(name: str, size: int | None) -> _Arrays:
    import datasets

    loaded = splits(name, f"as an npz under --data and name that: {EXPECTED}")
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
        x = _decoded(loaded[split][images[0]], size, f"{name} ({split})")
        parts.append(_checked(x, np.asarray(loaded[split][label]), f"{name} ({split})"))
    return _joined(parts, tuple(features[label].names), name)


def _decoded(images: Iterable[Any], size: int | None, where: str) -> Array:
    """PIL images as one uint8 array of shape (N, H, W) or (N, H, W, 3)."""
    from PIL import Image

    arrays = [
        np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB")) for image in images
    ]
    if any(array.ndim == 3 for array in arrays):
        arrays = [a if a.ndim == 3 else np.repeat(a[..., None], 3, axis=2) for a in arrays]
    if len({array.shape for array in arrays}) > 1:
        if size is None:
            raise DataError(f"{where}: images differ in size; set task.size to resize them")
        arrays = [
            np.asarray(Image.fromarray(array).resize((size, size), Image.Resampling.BILINEAR))
            for array in arrays
        ]
    return np.stack(arrays)
