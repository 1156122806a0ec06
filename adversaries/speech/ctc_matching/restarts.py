"""Starts of a search that meet: where none has matched, they go on from their means."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedsim.gradients import Match

__all__ = ["means", "meet"]

FALL = 0.1
"""Share by which meetings, `FRUITLESS` of them, have to lower the lowest value to go on."""

FRUITLESS = 3


def meet(
    search: Callable[[list[Tensor], float], Match],
    match: Match,
    lr: float,
    meetings: int,
    rng: torch.Generator,
) -> Match:
    """Search again from the means of where R starts have ended, `meetings` times at most.

    search: from starts (n,) and a step length to how they ended. match: how the first ones did. lr:
    their step length; after a meeting it is how far the ends were apart (the mean standard
    deviation of a coordinate), if that is less. Over when a start has matched or the budget is used
    up, when fewer than two have run their steps, or when meetings bring nothing. Returns the lowest
    point of all, with how the last starts ended and the evaluations of all.
    """
    lowest = [match.value]
    for _ in range(meetings):
        told = zip(match.ends, match.outcomes, strict=True)
        ends = [end for end, outcome in told if outcome == "steps"]
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
    """Of R points (n,) the mean of all, and R - 1 means of random halves."""
    points = torch.stack(ends)
    count = (len(ends) + 1) // 2
    halves = [torch.randperm(len(ends), generator=rng)[:count] for _ in ends[1:]]
    return [points.mean(dim=0), *(points[half.to(points.device)].mean(dim=0) for half in halves)]
