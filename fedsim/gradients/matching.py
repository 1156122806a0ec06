"""The matching loop: one batched optimisation for many victims and their restarts."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedsim.adversary import Job
from fedsim.gradients.compiling import Objective, evaluated
from fedsim.gradients.descent import Optimizer

Resources = Job


@dataclass(frozen=True, slots=True)
class Rules:
    """When a start ends.

    A start stalls if its value decreases by less than a share `fall` in `patience` iterations, or
    if what its point stands for (`Checks.reading`) has not changed for `unchanged` iterations.

    Attributes:
        iterations: Number of iterations at most.
        evaluations: Evaluations of the objective in an iteration.
        matched: Value below which the victim has a match.
        floor: Value below which a start that stalls is a match up to rounding.
        hopeless: Value above which a start is given up after `checked` iterations.
        checked: Iterations after which `hopeless` applies.
        fall: Share by which the value has to decrease.
        patience: Iterations in which it has to.
        unchanged: Iterations without a change after which a start stalls; 0: never.
    """

    iterations: int
    evaluations: int = 20
    matched: float = -math.inf
    floor: float = -math.inf
    hopeless: float = math.inf
    checked: int = 10
    fall: float = 0.05
    patience: int = 25
    unchanged: int = 0


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often the search for a victim is restarted, and which of its points are compared.

    Attributes:
        number: New starts of a victim whose start diverged, stalled or ran out of steps.
        together: Run all starts side by side, until one has matched.
        ends: Compare only the points at which starts ended, not all on their way.
    """

    number: int = 0
    together: bool = False
    ends: bool = False


@dataclass(frozen=True, slots=True)
class Checks:
    """What is computed of points besides the objective.

    Attributes:
        judge: Compares the points at which starts ended (`Restarts.ends`); None: the objective.
        reading: What points (R, n) of victims (R,) stand for, (R, ...), for `Rules.unchanged`.
        every: Evaluations of a start from one reading to the next.
        after: Evaluations of a start before the first reading.
        proof: Replaces `Rules.matched`. Of points (R, n) and victims (R,), the value (R,) of the
            points that are a match beyond doubt, and infinity for the others.
    """

    judge: Objective | None = None
    reading: Callable[[Tensor, Tensor], Tensor] | None = None
    every: int = 1
    after: int = 0

    proof: Callable[[Tensor, Tensor], Tensor] | None = None

    def due(self, evaluations: int) -> bool:
        """Whether the point of a start is to be read after so many evaluations."""
        return evaluations >= self.after and evaluations % self.every == 0


@dataclass(slots=True)
class Match:
    """The result of the search for one victim.

    Attributes:
        point: The point (n,) with the lowest value over all starts, or, with `Restarts.ends`, of
            those at which starts ended.
        value: Its value.
        outcomes: How each start ended: "matched", "stalled", "diverged", "steps" or "budget".
        ends: The points (n,) at which they ended, in the same order.
        evaluations: Evaluations of the objective with its gradient, over all starts.
    """

    point: Tensor
    value: float = math.inf
    outcomes: list[str] = field(default_factory=list)
    ends: list[Tensor] = field(default_factory=list)
    evaluations: int = 0


@dataclass(slots=True)
class _Start:
    """One start of one victim, a row of the batch.

    Attributes:
        victim: Index of the victim.
        lowest: Lowest value so far.
        matched: Whether the start has matched.
        evaluations: Evaluations so far.
        recent: Lowest value after each iteration.
        said: What its point stands for (`Checks.reading`).
        same: Evaluations since that changed.
    """

    victim: int
    lowest: float = math.inf
    matched: bool = False
    evaluations: int = 0
    recent: list[float] = field(default_factory=list)
    said: Tensor | None = None
    same: int = 0

    def says(self, now: Tensor, since: int) -> None:
        """Compare what its point stands for with what it did `since` evaluations ago."""
        unchanged = self.said is not None and torch.equal(self.said, now)
        self.said, self.same = now, self.same + since if unchanged else 0


ONE_START, NO_CHECKS = Restarts(), Checks()
GIVEN_UP = ("diverged", "stalled", "steps")
"""Outcomes after which a new start is worth a try."""


def minimise(
    objective: Objective,
    start: Callable[[int], Tensor],
    jobs: Sequence[Job],
    optimizer: Callable[[Tensor], Optimizer],
    rules: Sequence[Rules],
    *,
    restarts: Restarts = ONE_START,
    checks: Checks = NO_CHECKS,
    blocks: Tensor | None = None,
) -> list[Match]:
    """Minimise one objective a victim, all in one batch; each result is that of its own run.

    The lowest value decides between points; the truth is never used.

    Args:
        objective: Values (R,) of points (R, n) and victims (R,), differentiable.
        start: Draws the starting point (n,) of a victim from its job's generator.
        jobs: One a victim.
        optimizer: Made from the starting points (R, n).
        rules: When a start ends; one a victim.
        restarts: New starts of each victim.
        checks: What is computed of points besides the objective.
        blocks: (N, n) bool. Iteration i moves the coordinates of block i mod N alone (DLG's rule
            for batches).

    Returns:
        One match a victim.

    Raises:
        Cancelled: A job was cancelled.
        AttackTimeout: A job's time ran out.
    """
    proof, reading = checks.proof, checks.reading
    starts = 1 + restarts.number if restarts.together else 1
    rows = [_Start(victim) for _ in range(starts) for victim in range(len(jobs))]
    points = torch.stack([start(row.victim) for row in rows])
    found = [Match(points[victim].clone()) for victim in range(len(jobs))]
    state = optimizer(points)
    for victim, job in enumerate(jobs):
        if job.budget is not None and job.iterations >= job.budget:
            found[victim].outcomes.append("budget")
    going = [index for index, row in enumerate(rows) if not found[row.victim].outcomes]
    if len(going) < len(rows):
        rows = [rows[index] for index in going]
        state.keep(torch.tensor(going, dtype=torch.int64, device=points.device))
    victims = _victims(rows, points.device)
    evaluate = evaluated(objective)
    for job, rule in zip(jobs, rules, strict=True):
        job.plan(rule.iterations * (1 + restarts.number))
    while rows:
        points = state.point().detach()
        values, gradients = evaluate(points, victims)
        if blocks is not None:
            moved = [len(row.recent) % len(blocks) for row in rows]
            gradients = torch.where(blocks[moved], gradients, torch.zeros_like(gradients))
        if reading is not None and (
            due := [at for at, row in enumerate(rows) if checks.due(row.evaluations)]
        ):
            for at, now in zip(due, reading(points[due], victims[due]), strict=True):
                rows[at].says(now, checks.every)
        sound = values.isfinite() & gradients.isfinite().all(dim=1)
        state.tell(
            torch.where(sound, values, torch.inf),
            torch.where(sound[:, None], gradients, torch.zeros_like(gradients)),
        )
        proofs = torch.full_like(values, torch.inf)
        if proof is not None:
            proofs = proof(points, victims)
        # Read at once, as a GPU has to end its work for it.
        numbers, proved, fine, stuck = torch.stack(
            [each.double() for each in (values, proofs, sound, state.stuck())]
        ).tolist()
        for index, (row, good) in enumerate(zip(rows, fine, strict=True)):
            best = found[row.victim]
            row.evaluations += 1
            best.evaluations += 1
            if not good:
                continue
            row.lowest = min(row.lowest, numbers[index])
            value = numbers[index]
            if proof is None:
                row.matched |= value < rules[row.victim].matched
            elif proved[index] < math.inf:
                row.matched, value = True, proved[index]
            first = proof is not None and row.matched and "matched" not in best.outcomes
            if first or (value < best.value and (row.matched or not restarts.ends)):
                best.value, best.point = value, points[index].clone()
        ended: dict[int, str] = {}
        for index, row in enumerate(rows):
            rule = rules[row.victim]
            if stuck[index] or row.matched or row.evaluations % rule.evaluations == 0:
                outcome = _judge(row, rule, jobs[row.victim], bool(stuck[index]), not fine[index])
                if outcome:
                    ended[index] = outcome
                elif blocks is not None and len(blocks) > 1:
                    state.restart(index, state.at(index))
        if restarts.ends and ended:
            _finish(checks.judge or objective, ended, rows, found, state)
        for index, outcome in ended.items():
            best = found[rows[index].victim]
            best.outcomes.append(outcome)
            best.ends.append(state.at(index))
            job = jobs[rows[index].victim]
            spent = job.budget is not None and job.iterations >= job.budget
            again = outcome in GIVEN_UP and not spent and len(best.outcomes) <= restarts.number
            if again and not restarts.together:
                rows[index] = _Start(rows[index].victim)
                state.restart(index, start(rows[index].victim))
        left = [
            index
            for index, row in enumerate(rows)
            if (index not in ended or not row.evaluations)
            and "matched" not in found[row.victim].outcomes
        ]
        if len(left) < len(rows):
            rows = [rows[index] for index in left]
            state.keep(torch.tensor(left, dtype=torch.int64, device=points.device))
            victims = _victims(rows, points.device)
    return found


def _victims(rows: Sequence[_Start], device: torch.device) -> Tensor:
    """Each row's victim, (R,) int64."""
    return torch.tensor([row.victim for row in rows], dtype=torch.int64, device=device)


def _judge(row: _Start, rule: Rules, job: Job, stuck: bool, broken: bool) -> str:
    """How a start has ended after an iteration; "" if it continues."""
    job.iterations += 1
    row.recent.append(row.lowest)
    job.progress(job.iterations, row.lowest)
    steps = len(row.recent)
    if row.matched:
        return "matched"
    if (stuck and broken) or (steps >= rule.checked and row.lowest > rule.hopeless):
        return "diverged"
    slow = steps > rule.patience and row.lowest > (1 - rule.fall) * row.recent[-1 - rule.patience]
    settled = rule.unchanged and row.same >= rule.unchanged * rule.evaluations
    if stuck or slow or settled:
        return "matched" if row.lowest <= rule.floor else "stalled"
    if job.budget is not None and job.iterations >= job.budget:
        return "budget"
    return "steps" if steps >= rule.iterations else ""


def _finish(
    judge: Objective,
    ended: Mapping[int, str],
    rows: Sequence[_Start],
    found: Sequence[Match],
    state: Optimizer,
) -> None:
    """Compare the points at which starts without a match ended, which were not evaluated yet."""
    at = [index for index in ended if not rows[index].matched]
    if not at:
        return
    points = torch.stack([state.at(index) for index in at])
    victims = torch.tensor([rows[index].victim for index in at], device=points.device)
    with torch.no_grad():
        values = judge(points, victims)
    for point, victim, value in zip(points, victims.tolist(), values.tolist(), strict=True):
        if value < found[victim].value:
            found[victim].value, found[victim].point = value, point
