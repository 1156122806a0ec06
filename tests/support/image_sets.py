"""Small data sets of images, written as files."""

import numpy as np


def written(folder, name="toy", **arrays):
    """The folder, with the arrays in an npz file."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)
    return folder


def toy(n=60, shape=(6, 5), classes=3):
    """Random grey images whose labels go round."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y": (np.arange(n) % classes).astype(np.uint8),
    }
