"""Real data of the benchmarks on whole batches: examples, their labels, the number of classes."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.spec import Column, ImageSpec, Spec, TabularSpec


@dataclass(frozen=True)
class Set:
    """Examples, images (N, C, H, W) in [0, 1] or rows (N, D), and their labels (N,)."""

    images: Tensor
    labels: Tensor
    classes: int

    @property
    def spec(self) -> Spec:
        """What examples look like."""
        shape = tuple(self.images.shape[1:])
        if len(shape) > 1:
            return ImageSpec(self.classes, shape)
        return TabularSpec(self.classes, columns=tuple(Column(str(i)) for i in range(*shape)))


def digits() -> Set:
    """Handwritten digits of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return Set(torch.tensor(data.images / 16).float()[:, None], torch.tensor(data.target), 10)


def cifar(folder: Path, classes: int = 100) -> Set:
    """The test images of CIFAR-10 or CIFAR-100."""
    stored = np.load(folder / f"cifar{classes}.npz")
    images = torch.from_numpy(stored["x_test"]).float() / 255
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    return Set(images.contiguous(), torch.from_numpy(stored["y_test"]).long().flatten(), classes)


def tiny(folder: Path) -> Set:
    """Photographs of 200 classes, 64 x 64."""
    stored = np.load(folder / "tiny_imagenet_val.npz")
    images = torch.from_numpy(stored["x"]).float().div(255).permute(0, 3, 1, 2)
    return Set(images.contiguous(), torch.from_numpy(stored["y"]).long().flatten(), 200)


def thousand(folder: Path) -> Set:
    """The same photographs in 1,000 classes of two: each of the 200 classes split into five."""
    data = tiny(folder)
    earlier = torch.stack([(data.labels[:i] == one).sum() for i, one in enumerate(data.labels)])
    return Set(data.images, 5 * data.labels + earlier // 2, 1000)


def wine() -> Set:
    """Chemical analyses of 178 wines: 13 standardised values, three vineyards."""
    from sklearn.datasets import load_wine

    return _table(load_wine())


def tumours() -> Set:
    """569 tumours: 30 standardised measurements, benign or malignant."""
    from sklearn.datasets import load_breast_cancer

    return _table(load_breast_cancer())


def _table(data: Any) -> Set:
    values = torch.tensor(data.data)
    values = (values - values.mean(dim=0)) / values.std(dim=0, correction=0)
    return Set(values.float(), torch.tensor(data.target), len(data.target_names))


READERS: dict[str, Callable[[Path], Set]] = {
    "digits": lambda _: digits(),
    "wine": lambda _: wine(),
    "tumours": lambda _: tumours(),
    "cifar10": lambda folder: cifar(folder, 10),
    "cifar100": cifar,
    "tiny": tiny,
    "thousand": thousand,
}
"""Readers of a data set from a folder; a set whose file is missing raises FileNotFoundError."""
