"""Folders of small images, and their reader."""

import numpy as np

from fedsim.tasks.images.data import load


def images(name, folder=None, size=None):
    return load(name, folder, size=size, test_fraction=0.2, seed=0)


def pictures(folder, count=4, side=5):
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for n in range(count):
            pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{n}.png")
