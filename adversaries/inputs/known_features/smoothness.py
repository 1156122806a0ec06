"""Directions in which images differ, by how much they usually do."""

from math import pi

import torch
from torch import Tensor

COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
"""Brightness, and two differences of colours."""

SHARES = (1.0, 0.3, 0.15)
"""About how much these vary."""


def usual_directions(shape: tuple[int, ...], *, smooth: bool) -> Tensor:
    """Directions in which inputs differ, longer where they vary more.

    Natural images have amplitudes that fall with the frequency f, here as 1 / (1 + f) of their
    cosine transform (Field, Relations between the statistics of natural images and the response
    properties of cortical cells, JOSA A 1987), and differ less in colour than in brightness
    (Ruderman et al., Statistics of cone responses to natural images, JOSA A 1998).

    Args:
        shape: (channels, height, width). Inputs of another shape vary alike in all values.
        smooth: Whether images vary so; if not, all values vary alike.

    Returns:
        Orthogonal directions (n, *shape) float64, as many as values.
    """
    number = torch.Size(shape).numel()
    if not smooth or len(shape) != 3:
        return torch.eye(number, dtype=torch.float64).view(number, *shape)
    channels, *sides = shape
    colours, shares = torch.eye(channels, dtype=torch.float64), torch.ones(channels).double()
    if channels == len(COLOURS):
        colours = torch.nn.functional.normalize(torch.tensor(COLOURS).double(), dim=1)
        shares = torch.tensor(SHARES).double()
    down, across = (_cosines(side) for side in sides)
    height, width = (torch.arange(side, dtype=torch.float64) for side in sides)
    sizes = 1 / (1 + (height[:, None].square() + width.square()).sqrt())
    scaled = torch.einsum("c,ab,ck,ai,bj->cabkij", shares, sizes, colours, down, across)
    return scaled.reshape(number, *shape)


def _cosines(side: int) -> Tensor:
    """The orthonormal cosine transform, one row for each frequency (side, side)."""
    places = torch.arange(side, dtype=torch.float64)
    rows = torch.cos(pi * places[:, None] * (places + 0.5) / side)
    return torch.nn.functional.normalize(rows, dim=1)
