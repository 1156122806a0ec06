"""Search for dummy frames by Adam from several starts, and again from the means of their ends."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from adversaries.speech.candidates import Candidate, TimeEstimate
from adversaries.speech.ctc_matching.dummy_frames import DummyFrames, SharedFrames
from fedsim import Job
from fedsim.gradients import Adam, Match, Restarts, Rules, minimise

MATCHED = 1e-9
"""Distance below which a start has matched; in float32 it is zero up to rounding."""

FALL = 0.1
"""Share by which `FRUITLESS` restarts have to lower the lowest distance; else they end."""

FRUITLESS = 3
"""Restarts from means over which the lowest distance has to fall."""


@dataclass(slots=True, eq=False)
class FrameSearch:
    """The search for the frames of one candidate.

    Attributes:
        candidate: The transcripts and lengths that are assumed.
        frames: The objective.
        job: The attack's job.
        seed: Seed of the dropout masks.
        match: The point with the lowest distance, the outcomes of the last starts, and the
            evaluations of all.
        lowest: The lowest distance after the first starts, and after each restart from means.
    """

    candidate: Candidate
    frames: DummyFrames
    job: Job
    seed: int
    match: Match = field(init=False)
    lowest: list[float] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of values n of a point."""
        return sum(length * width for length, width in self.frames.shapes)

    @property
    def matched(self) -> bool:
        """Whether a start has matched, which only the correct transcript and length allow."""
        return "matched" in self.match.outcomes

    @property
    def ends(self) -> list[Tensor]:
        """The points (n,) of the starts that took all their steps."""
        # A search whose budget was used up before it began has an outcome, and no end.
        both = zip(self.match.ends, self.match.outcomes, strict=False)
        return [end for end, outcome in both if outcome == "steps"]

    @property
    def over(self) -> bool:
        """Whether no restart from means would help, or none is left in the budget."""
        far = len(self.lowest) > FRUITLESS
        before = self.lowest[-1 - FRUITLESS] if far else math.inf
        ended = {*self.match.outcomes} <= {"steps", "diverged"}
        return len(self.ends) < 2 or not ended or self.lowest[-1] > (1 - FALL) * before

    def take(self, match: Match) -> None:
        """Take the result of starts, or of restarts after them."""
        if self.lowest:
            match.evaluations += self.match.evaluations
            if self.match.value < match.value:
                match.point, match.value = self.match.point, self.match.value
        self.match = match
        self.lowest.append(match.value)


def from_starts(
    searches: Sequence[FrameSearch],
    count: int,
    iterations: int,
    lr: float,
    estimates: Sequence[TimeEstimate] = (),
) -> None:
    """Search from starts that are uniform in [-1, 1].

    Args:
        searches: Searches of different victims of one model, which share their passes
            (`SharedFrames`), or a single search.
        count: Number of starts of each, side by side until one has matched.
        iterations: Steps of each start.
        lr: Initial learning rate.
        estimates: Their `step` is called before each evaluation.
    """
    starts = []
    for one in searches:
        uniform = [torch.rand(one.size, generator=one.job.rng) for _ in range(count)]
        starts.append([2 * start.to(one.job.device) - 1 for start in uniform])
    _search(searches, starts, iterations, [lr] * len(searches), estimates)


def from_means(searches: Sequence[FrameSearch], restarts: int, iterations: int, lr: float) -> None:
    """Search again from the means of the points where R starts ended.

    The starts end at points that are each off in a direction of their own, so that their mean is
    nearer to the solution. A search ends when a start has matched, when the budget is used up, when
    fewer than two starts took all their steps, or when restarts no longer lower the distance.

    Args:
        searches: Searches that `from_starts` has run.
        restarts: The largest number of restarts of each.
        iterations: Steps of each start.
        lr: Initial learning rate, if the starts' standard deviation is not smaller.
    """
    for _ in range(restarts):
        searches = [one for one in searches if not one.over]
        if not searches:
            return
        by_count: dict[int, list[FrameSearch]] = {}
        for one in searches:
            by_count.setdefault(len(one.ends), []).append(one)
        for some in by_count.values():
            apart = [float(torch.stack(one.ends).std(dim=0).mean()) for one in some]
            starts = [means(one.ends, one.job.rng) for one in some]
            _search(some, starts, iterations, [min(lr, own) for own in apart])


def _search(
    searches: Sequence[FrameSearch],
    starts: Sequence[Sequence[Tensor]],
    iterations: int,
    lrs: Sequence[float],
    estimates: Sequence[TimeEstimate] = (),
) -> None:
    """Run the starts (n,) of all searches side by side: as many of each, at a rate of its own."""
    first, *others = searches
    objective = SharedFrames([one.frames for one in searches]) if others else first.frames
    longest = max(one.size for one in searches)
    waiting = [iter(own) for own in starts]
    count = len(starts[0])

    def start(victim: int) -> Tensor:
        own = next(waiting[victim])
        return functional.pad(own, (0, longest - len(own)))

    def timed(points: Tensor, victims: Tensor) -> Tensor:
        for estimate in estimates:
            estimate.step()
        return objective(points, victims)

    def adam(points: Tensor) -> Adam:
        each = points.new_tensor(lrs).repeat(count) if others else lrs[0]
        return Adam(points, lr=each, schedule=lowered)

    def lowered(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, step / iterations)))

    matches = minimise(
        timed,
        start,
        [one.job for one in searches],
        adam,
        [Rules(iterations, evaluations=1, matched=MATCHED, patience=iterations)] * len(searches),
        restarts=Restarts(count - 1, together=True),
    )
    for one, match in zip(searches, matches, strict=True):
        match.point, match.ends = match.point[: one.size], [end[: one.size] for end in match.ends]
        one.take(match)


def means(ends: list[Tensor], rng: torch.Generator) -> list[Tensor]:
    """The mean of R points of shape (n,), and R - 1 means of random halves of them."""
    points = torch.stack(ends)
    count = (len(ends) + 1) // 2
    halves = [torch.randperm(len(ends), generator=rng)[:count] for _ in ends[1:]]
    return [points.mean(dim=0), *(points[half.to(points.device)].mean(dim=0) for half in halves)]
