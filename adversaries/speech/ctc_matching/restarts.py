"""Multi-start gradient matching: restart from the means of runs that stalled."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.gradients import Match

FALL = 0.1
"""Share by which `FRUITLESS` restarts have to lower the lowest distance; else they end."""

FRUITLESS = 3
"""Restarts over which the lowest distance has to fall."""


def restart_from_means(
    search: Callable[[list[Tensor], float], Match],
    match: Match,
    lr: float,
    restarts: int,
    rng: torch.Generator,
) -> Match:
    """Search again from the means of the points where R runs ended.

    The runs end at points that are each off in a direction of their own, so that their mean is
    nearer to the solution. Ends when a run has matched, when the budget is used up, when fewer than
    two runs took all their steps, or when restarts no longer lower the distance.

    Args:
        search: Runs the optimiser from R starts of shape (n,) with a step length.
        match: The result of the first R runs.
        lr: Their step length. After a restart it is the mean standard deviation of a coordinate
            over the end points, if that is smaller.
        restarts: The largest number of restarts.
        rng: Draws the random halves; see `means`.

    Returns:
        The point with the lowest distance of all runs, the outcomes of the last runs, and the
        evaluations of all.
    """
    lowest = [match.value]
    for _ in range(restarts):
        both = zip(match.ends, match.outcomes, strict=True)
        ends = [end for end, outcome in both if outcome == "steps"]
        over = len(ends) < 2 or not {*match.outcomes} <= {"steps", "diverged"}
        before = lowest[-1 - FRUITLESS] if len(lowest) > FRUITLESS else math.inf
        if over or lowest[-1] > (1 - FALL) * before:
            break
        apart = float(torch.stack(ends).std(dim=0).mean())
        sofar, match = match, search(means(ends, rng), min(lr, apart))
        match.evaluations += sofar.evaluations
        if sofar.value < match.value:
            match.point, match.value = sofar.point, sofar.value
        lowest.append(match.value)
    return match


def means(ends: list[Tensor], rng: torch.Generator) -> list[Tensor]:
    """The mean of R points of shape (n,), and R - 1 means of random halves of them."""
    points = torch.stack(ends)
    count = (len(ends) + 1) // 2
    halves = [torch.randperm(len(ends), generator=rng)[:count] for _ in ends[1:]]
    return [points.mean(dim=0), *(points[half.to(points.device)].mean(dim=0) for half in halves)]
