"""The scale of inputs, where their gradient is the same at every scale.

A linear or convolutional layer whose outputs are normalised over the batch makes the same of x and
of a x, for every a > 0, and has the same gradient, up to the small number that normalisation adds
to the variance. Gradient matching then finds the inputs, but not how bright they are.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.gradients.head import layer_calls
from fedsim.gradients.matching import Match
from fedsim.gradients.problem import Problem
from fedsim.gradients.statistics import Statistics

FREE = 1e-8
"""Change of the distance, as a share of that of a gradient of zeros, below which a match does not
resolve it. Half and twice the scale make 1e-15 on ResNets, where `dlg` ends, .003 or more on LeNets
and a CNN without normalisation."""

TRIED = (0.5, 2.0)
"""Scales at which the distance is compared with that of the inputs themselves."""


def settle_scale(
    problem: Problem, matches: Sequence[Match], statistics: Sequence[Statistics]
) -> None:
    """Scale the inputs of matches, in place, where the gradient does not determine their scale.

    Inputs are multiplied so that the variance of the first normalisation layer's input equals that
    of the victim's batch, if it is known. Otherwise their largest value becomes the upper end of
    the task's input range, such as 1 for images. Without a range, they are not changed.

    Args:
        problem: The matching.
        matches: One for each victim.
        statistics: Each victim's batch statistics; empty where they are not known.
    """
    if not matches:
        return
    points = torch.stack([match.point for match in matches])
    victims = torch.arange(len(matches), device=points.device)
    zeros = torch.tensor(problem.scales, device=points.device)

    def distances(points: Tensor, victims: Tensor) -> Tensor:
        return problem(points, victims).detach()

    values = distances(points, victims)
    changes = [distances(_scaled(problem, points, a), victims) - values for a in TRIED]
    free = (torch.stack(changes).abs() < FREE * zeros).all(dim=0).tolist()
    for victim, match in enumerate(matches):
        inputs = match.point[: problem.pixels].view(problem.inputs_shape)
        factor = free[victim] and (
            _by_statistics(problem, inputs, statistics[victim])
            or _by_range(getattr(problem.spec, "input_range", None), inputs)
        )
        if factor:
            match.point = _scaled(problem, match.point[None], factor)[0]
            match.value = float(distances(match.point[None], victims[[victim]]))


def _scaled(problem: Problem, points: Tensor, factor: float) -> Tensor:
    """Points (R, n) whose inputs are multiplied by a factor."""
    return torch.cat([factor * points[:, : problem.pixels], points[:, problem.pixels :]], dim=1)


def _by_statistics(problem: Problem, inputs: Tensor, known: Statistics) -> float | None:
    """What makes the variance at the first normalisation layer that of the victim's batch."""
    if not known:
        return None
    name = next(iter(known))
    layer = {name: problem.model.module.get_submodule(name)}
    with torch.no_grad(), layer_calls(layer) as calls:
        problem.model.module(inputs)
    ours = calls[name][0][0].transpose(0, 1).flatten(1).var(dim=1).sum()
    theirs = known[name][1].sum()
    return float((theirs.to(ours) / ours).sqrt()) if ours > 0 and theirs > 0 else None


def _by_range(span: Any, inputs: Tensor) -> float | None:
    """The largest factor that keeps inputs within those ends of a range that are not 0."""
    if span is None:
        return None
    (low, high), least, most = span, float(inputs.min()), float(inputs.max())
    ends = [end / value for end, value in ((high, most), (low, least)) if end * value > 0]
    return min(ends, default=None)
