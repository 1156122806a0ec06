"""Images and labels as arrays: of npz files, folders, or a function of the user's own, checked."""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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


class Head(Protocol):
    """What is known of an array before its values are read."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its values."""
        ...


def stored_arrays(heads: Mapping[str, Head], read: Callable[[str], Array], where: str) -> Arrays:
    """Images and labels by the names that they have in an npz file.

    What shapes, types or labels refuse is refused before any images are read.

    Args:
        heads: Shapes and types by name.
        read: Reads an array by its name.
        where: The source, for the error message.

    Raises:
        DataError: They are no images with their labels.
    """
    split = {"x_train", "y_train", "x_test", "y_test"} <= heads.keys()
    if not split and not {"x", "y"} <= heads.keys():
        raise DataError(f"{where} holds {', '.join(heads) or 'nothing'}; expected {EXPECTED}")
    parts = [("x_train", "y_train"), ("x_test", "y_test")] if split else [("x", "y")]
    places = [f"{where} ({x}, {y})" for x, y in parts]
    forms = [suited(heads[x], heads[y], place) for (x, y), place in zip(parts, places, strict=True)]
    alike(forms, where)
    names: tuple[str, ...] = ()
    if named := [key for key in NAMES if key in heads]:
        if len(shape := heads[named[0]].shape) != 1:
            raise DataError(f"{where}: {named[0]} has shape {shape}, expected a name a label")
        names = tuple(str(name) for name in read(named[0]))
    labels = [read(y) for _, y in parts]
    labelled(np.concatenate(labels), names, where)
    found = [
        checked(read(x), y, place) for (x, _), y, place in zip(parts, labels, places, strict=True)
    ]
    return joined(found, names, where)


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
    return stored_arrays(arrays, arrays.__getitem__, f"{name}()")


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
    train = files[0].get("train", [])
    if len(parts) == 1 and train and path / "train" not in {file.parent for file in train}:
        raise DataError(
            f"{path} holds {', '.join(files[0])}, and train holds subfolders; expected train and "
            "test with one subfolder a label in each: call the other split test"
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
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
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


def suited(x: Head, y: Head, where: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Validate shapes and types of images and labels.

    Returns:
        The shape (N, C, H, W) of the images, and their type.
    """
    shape = (*x.shape, 1) if len(x.shape) == 3 else x.shape
    images = len(shape) == 4 and shape[3] in (1, 3) and min(shape) > 0
    labels = y.shape == shape[:1] and y.dtype.kind in "iu"
    if not (images and labels and (x.dtype.kind == "f" or x.dtype == np.uint8)):
        why = ""
        if x.shape[:1] == (0,):
            why = "; there is no image"
        elif images and len(y.shape) == 1 and y.dtype.kind in "iu" and y.shape != shape[:1]:
            why = f"; {shape[0]} images have {y.shape[0]} labels"
        raise DataError(_found(x, y, where) + why)
    number, height, width, channels = shape
    kind = np.dtype(np.float32) if x.dtype.kind == "f" else x.dtype
    return (number, channels, height, width), kind


def _found(x: Head, y: Head, where: str) -> str:
    found = f"images {x.dtype} {x.shape}, labels {y.dtype} {y.shape}"
    return f"{where}: {found}; expected {EXPECTED}"


def checked(x: Array, y: Array, where: str) -> tuple[Array, Array]:
    """Validate images, returned as (N, C, H, W) uint8 or float32, and labels of shape (N,)."""
    suited(x, y, where)
    if x.dtype.kind == "f":
        if not (np.isfinite(x).all() and x.min() >= 0 and x.max() <= 1):
            wrong = f"these floats run from {x.min()} to {x.max()}"
            if odd := x.size - np.isfinite(x).sum():
                wrong = f"{odd} of these floats are NaN or infinite"
            raise DataError(f"{_found(x, y, where)}; {wrong}")
        x = x.astype(np.float32)
    images = x[..., None] if x.ndim == 3 else x
    return images.transpose(0, 3, 1, 2), y.astype(np.int64)


def labelled(y: Array, names: Sequence[str], where: str) -> int:
    """Validate labels; returns the number of classes.

    Args:
        y: The labels of all examples.
        names: The names of the labels, if there are any.
        where: The source, for the error message.

    Raises:
        DataError: They do not run from 0 without gaps, or there is one alone.
    """
    classes = len(names) or int(y.max()) + 1
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(
            f"{where} has labels from {y.min()} to {y.max()}, expected "
            f"0 to {classes - 1}" + (": it names that many classes" if names else "")
        )
    if classes < 2:
        raise DataError(f"{where} has a single label; a classifier needs two")
    present = {*np.unique(y).tolist()}
    if len(present) < classes and not names:
        missing = list(itertools.islice((n for n in range(classes) if n not in present), 6))
        named = ", ".join(map(str, missing[:5])) + (" and others" if len(missing) > 5 else "")
        raise DataError(
            f"{where} has labels from 0 to {y.max()}, but no example with {named}. "
            "Number classes from 0 without gaps, or name them all in label_names"
        )
    return classes


def alike(forms: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], where: str) -> None:
    """Raise `DataError` if images of splits differ in their shape (N, C, H, W) or type."""
    if len({(shape[1:], kind) for shape, kind in forms}) > 1:
        shown = " and ".join(f"{kind} {shape}" for shape, kind in forms)
        raise DataError(f"{where}: train and test images differ in shape or type: {shown}")


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
    alike([(x.shape, x.dtype) for x in images], where)
    return Arrays(
        x=np.concatenate(images),
        y=np.concatenate([y for _, y in parts]),
        tests=len(parts[1][1]) if len(parts) > 1 else None,
        white=255.0 if images[0].dtype == np.uint8 else 1.0,
        label_names=names,
    )
