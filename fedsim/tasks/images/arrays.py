"""Images and labels as arrays: of npz files, folders, or a function of the user's own, checked."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import DataError
from fedsim.tasks.local_data import call_loader, files_by_label, inside_folder

NAMES = ("label_names", "fine_label_names", "names")
EXPECTED = (
    "x_train, y_train, x_test and y_test, or x and y: images uint8 (N, H, W) or "
    "(N, H, W, C) with 1 or 3 channels, or floats in [0, 1] so shaped; labels integers (N,)"
)

IMAGES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of image files."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
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


def stored_arrays(stored: Mapping[str, Array], where: str) -> Arrays:
    """Arrays by the names that they have in an npz file."""
    split = {"x_train", "y_train", "x_test", "y_test"} <= stored.keys()
    if not split and not {"x", "y"} <= stored.keys():
        raise DataError(f"{where} holds {', '.join(stored) or 'nothing'}; expected {EXPECTED}")
    parts = [("x_train", "y_train"), ("x_test", "y_test")] if split else [("x", "y")]
    read = [checked(stored[x], stored[y], f"{where} ({x}, {y})") for x, y in parts]
    names = next((stored[key] for key in NAMES if key in stored), ())
    return joined(read, tuple(str(name) for name in names), where)


def own_arrays(name: str) -> Arrays:
    """What a function of the user's own returns: (images, labels), or arrays by name."""
    found = call_loader(name, f"(images, labels), or a dictionary with {EXPECTED}")
    if isinstance(found, tuple | list) and len(found) == 2:
        found = {"x": found[0], "y": found[1]}
    if not isinstance(found, Mapping):
        raise DataError(
            f"{name}() returned {type(found).__name__}; expected (images, labels), or a dictionary "
            f"with {EXPECTED}"
        )
    try:
        arrays = {str(key): _array(value) for key, value in found.items()}
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"{name}() returned no arrays: {error}; expected {EXPECTED}") from error
    return stored_arrays(arrays, f"{name}()")


def _array(value: Any) -> Array:
    """Anything as an array; images as torch has them, (N, C, H, W), as (N, H, W, C)."""
    if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] in (1, 3):
        value = value.permute(0, 2, 3, 1)
    return np.asarray(value)


def folder_arrays(path: Path, size: int | None) -> Arrays:
    """Images in one subfolder a label; of "train" and "test", if these two are there."""
    parts = [path]
    if all((path / split).is_dir() for split in ("train", "test")):
        parts = [inside_folder(path, split) for split in ("train", "test")]
    files = [files_by_label(part, IMAGES) for part in parts]
    if not all(files):
        raise DataError(
            f"{path} has no images in subfolders; expected one subfolder a label, or train and "
            f"test with these in them; images end in {', '.join(IMAGES)}"
        )
    names = tuple(sorted({label for part in files for label in part}))
    listed = tuple(
        tuple((str(file), file.stat().st_mtime_ns, names.index(label)) for label in part
              for file in part[label])
        for part in files
    )  # fmt: skip
    return _images(listed, names, size, str(path))


@functools.lru_cache(maxsize=2)
def _images(
    parts: tuple[tuple[tuple[str, int, int], ...], ...],
    names: tuple[str, ...],
    size: int | None,
    where: str,
) -> Arrays:
    """Decode image files, each with when it was changed and its label, once in a process."""
    # Together, so that both splits get one size and one number of channels.
    x = decoded((_opened(file) for part in parts for file, _, _ in part), size, where)
    splits = np.split(x, np.cumsum([len(part) for part in parts])[:-1])
    read = [
        checked(images, np.array([label for _, _, label in part]), where)
        for part, images in zip(parts, splits, strict=True)
    ]
    return joined(read, names, where)


def _opened(file: str) -> Any:
    from PIL import Image

    try:
        with Image.open(file) as image:
            image.load()
            return image
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} cannot be read as an image: {error}") from error


def decoded(images: Iterable[Any], size: int | None, where: str) -> Array:
    """PIL images as one uint8 array of shape (N, H, W) or (N, H, W, 3).

    Raises:
        DataError: The images differ in size and `size` is None, or one has more than 8 bits a
            channel, which PIL would clip.
    """
    from PIL import Image

    arrays = []
    for image in images:
        if image.mode.startswith(("I", "F")):
            raise DataError(
                f"{where}: an image has 16 or 32 bits a pixel (mode {image.mode}), expected 8 a "
                "channel. Convert it, or give floats in [0, 1] in an npz file"
            )
        arrays.append(np.asarray(image.convert("L" if image.mode in ("1", "L") else "RGB")))
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


def checked(x: Array, y: Array, where: str) -> tuple[Array, Array]:
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


def joined(parts: list[tuple[Array, Array]], names: tuple[str, ...], where: str) -> Arrays:
    """Join a training and a test split, or take a source without splits as it is.

    Args:
        parts: Images and labels of each split, as `checked` returns them; the test split last.
        names: The names of the labels, if there are any.
        where: The source, for the error message.

    Raises:
        DataError: The splits differ in shape or type.
    """
    images = [x for x, _ in parts]
    if len({(x.shape[1:], x.dtype) for x in images}) > 1:
        shown = " and ".join(f"{x.dtype} {x.shape}" for x in images)
        raise DataError(f"{where}: train and test images differ in shape or type: {shown}")
    return Arrays(
        x=np.concatenate(images),
        y=np.concatenate([y for _, y in parts]),
        tests=len(parts[1][1]) if len(parts) > 1 else None,
        white=255.0 if images[0].dtype == np.uint8 else 1.0,
        label_names=names,
    )
