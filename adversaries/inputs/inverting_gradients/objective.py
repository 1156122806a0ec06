"""What inverting-gradients minimises, and the order of labels at which it begins."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.known_features.distance import FeatureDistance
from fedsim.gradients import Objective, Problem, StatisticsDistance, head_calls, layer_calls

DRAWS = 4
"""Random orders drawn for each distinct one, as some repeat."""


def regularized(
    problem: Problem,
    statistics_of: Sequence[Mapping[str, tuple[Tensor, Tensor]]],
    known: Sequence[KnownBatch | None],
    *,
    tv: float,
    statistics: float,
    features: float,
) -> Objective:
    """The distance of gradients, relative to that of a gradient of zeros, with what else is known.

    Args:
        problem: The distance of gradients.
        statistics_of: Mean and variance of each victim's batch, by BatchNorm layer.
        known: Each victim's features before the head, where they are known.
        tv: Weight of the total variation, inputs as shares of their range.
        statistics: Weight of the distance of batch statistics.
        features: Weight of the distance of features.

    Raises:
        ValueError: The inputs are no images, and total variation has a weight.
    """
    if tv and len(problem.inputs_shape) != 4:
        raise ValueError(
            f"inputs of shape {problem.inputs_shape[1:]} are no images (channels, height, "
            "width), so that they have no total variation: set tv = 0"
        )
    low, high = problem.spec.input_range or (0.0, 1.0)
    scale = torch.tensor(problem.scales, dtype=problem.dtype, device=problem.device)
    normalised = StatisticsDistance(problem.model, statistics_of)
    batches = [one for one in known if one is not None]
    before_head = FeatureDistance(problem.model, batches) if features and batches else None

    def objective(points: Tensor, victims: Tensor) -> Tensor:
        with layer_calls(normalised.layers) as calls, head_calls(problem.model) as passes:
            value = problem(points, victims) / scale[victims]
        if calls:
            value = value + statistics * normalised(calls, victims)
        if before_head:
            value = value + features * before_head(passes, victims)
        if not tv:
            return value
        images = points[:, : problem.pixels].view(-1, *problem.inputs_shape)
        return value + tv / (high - low) * _total_variation(images)

    return objective


def _total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels of images (R, B, C, H, W), (R,)."""
    sides = [dim for dim in (3, 4) if images.shape[dim] > 1]  # one pixel has no neighbour
    each = [images.diff(dim=dim).abs().flatten(1).mean(dim=1) for dim in sides]
    return torch.stack(each).sum(dim=0) if each else images.new_zeros(len(images))


def nearest_order(
    point: Tensor,
    problem: Problem,
    objective: Objective,
    victim: int,
    rng: torch.Generator,
    orders: int,
) -> Tensor:
    """A start (coordinates,) with that one of several orders of its labels at which it is nearest.

    Args:
        point: The start, its labels in some order.
        problem: Draws orders.
        objective: Is lowest at the order that is taken.
        victim: Whose start it is.
        rng: Draws orders.
        orders: How many distinct orders are compared, if there are as many.
    """
    inputs, labels = point[: problem.pixels], point[problem.pixels :]
    dealt = {tuple(labels.tolist()): point}
    for _ in range(DRAWS * orders):
        if len(dealt) == orders:
            break
        labels = problem.order(victim, rng)
        dealt.setdefault(tuple(labels.tolist()), torch.cat([inputs, labels]))
    which = torch.tensor([victim], device=point.device)

    def distance(one: Tensor) -> float:
        value = float(objective(one[None], which).detach())
        return value if math.isfinite(value) else math.inf

    return min(dealt.values(), key=distance) if len(dealt) > 1 else point
