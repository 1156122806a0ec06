"""The input that makes given units fire, and no others."""

import torch
from torch import Tensor

from adversaries.inputs.spear.low_rank import LowRank

STEPS = 40
"""Newton steps."""

SHARPENED = 8
"""Steps after which the logistic function is made twice as steep."""

HOPELESS = 0.85
"""Share of right units below which the search ends early."""

LONGEST = 3.0
"""Largest change of a logit in a step."""


def input_that_fires(layer: LowRank, fires: Tensor, others: Tensor) -> tuple[Tensor, float]:
    """Coordinates of an input in the batch's span for which some units fire and the others do not.

    The input is sought by logistic regression. A mixture of several examples' units has none.

    Args:
        layer: The layer's gradient.
        fires: Which units fire (units,).
        others: Directions of other examples (k, B), which vanish at the input's coordinates.

    Returns:
        Coordinates (B,), and the share of units that fire as they should.
    """
    sums = torch.cat([layer.sums[None], others])
    one = torch.zeros_like(sums[:, 0])
    one[0] = 1
    base = torch.linalg.lstsq(sums, one[:, None], driver="gelsd").solution[:, 0]
    inside = torch.linalg.svd(sums, full_matrices=True)[2][len(sums) :]
    start, slopes = layer.outputs(base), layer.weight @ inside.T
    signs, steep = fires.double() * 2 - 1, 1 / float(start.abs().mean())
    found = torch.zeros(len(inside), dtype=sums.dtype)
    for step in range(1, STEPS + 1) if len(inside) else ():
        wrong = torch.sigmoid(-signs * (start + slopes @ found) * steep)
        gradient = -(slopes.T @ (signs * wrong)) * steep
        normal = (slopes * (wrong * (1 - wrong))[:, None]).T @ slopes * steep**2
        normal.diagonal().add_(1e-9 * normal.trace() / len(normal) + 1e-30)
        change = torch.linalg.solve(normal, gradient)
        longest = float((slopes @ change * steep).abs().amax()) + 1e-12
        found = found - change * min(1.0, LONGEST / longest)
        if step % SHARPENED == 0:
            steep *= 2
            if _share(start + slopes @ found, fires) < HOPELESS:
                break
    return base + found @ inside, _share(start + slopes @ found, fires)


def _share(outputs: Tensor, fires: Tensor) -> float:
    """Share of outputs that are positive just where units fire."""
    return float(((outputs > 0) == fires).double().mean())
