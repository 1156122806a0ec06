"""A PNG of original images and their reconstructions."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.metrics import match

TILES = 16
TILE = 96
GAP = 4


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
    pairs = list(zip(truth, match(found, truth), strict=True))[:TILES]
    rows = [
        [_tile(original) for original, _ in pairs],
        [_tile(found[i] if i >= 0 else torch.full_like(original, 0.5)) for original, i in pairs],
    ]
    return _png(rows)


def _tile(image: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An image (C, H, W) as uint8 of shape (H', W', 3), enlarged to at least 96 pixels a side."""
    pixels = image.clamp(0, 1)
    pixels = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels
    array = (pixels.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    times = max(1, math.ceil(TILE / min(array.shape[:2])))
    return array.repeat(times, axis=0).repeat(times, axis=1)


def _png(rows: list[list[np.ndarray[Any, np.dtype[np.uint8]]]]) -> bytes:
    from PIL import Image

    height, width = rows[0][0].shape[:2]
    sheet = Image.new(
        "RGB",
        (len(rows[0]) * (width + GAP) + GAP, len(rows) * (height + GAP) + GAP),
        "white",
    )
    for i, row in enumerate(rows):
        for j, tile in enumerate(row):
            sheet.paste(Image.fromarray(tile), (GAP + j * (width + GAP), GAP + i * (height + GAP)))
    stream = io.BytesIO()
    sheet.save(stream, format="PNG")
    return stream.getvalue()
