"""Inputs that solve a batch's equations, by Gauss-Newton from grey images."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.inputs.known_features.equations import BatchEquations
from fedsim import Job

FIRST, FALL, RISE = 1e-2, 0.003, 4.0
"""Damping: at first, as a share of the mean diagonal; its factor after a step, and after one that
does not help."""

TRIES = 12
"""Times that the damping of a step is raised."""

WORTH = 0.5
"""A step with the old derivatives is followed by another one if it leaves less than this share."""

ROUNDING = 3e-6
"""Root mean square of the scaled equations at which they are solved up to float32 rounding."""

LARGEST = 13_000
"""Unknown values of a batch at most: a dense matrix of 1.4 GB."""


@dataclass(frozen=True, slots=True)
class Solved:
    """The inputs at which Gauss-Newton ended.

    Attributes:
        inputs: (B, *shape) float64.
        missed: The root mean square by which they miss the scaled equations.
        outcome: "matched", "stalled", "steps" or "budget", as of `Match`.
    """

    inputs: Tensor
    missed: float
    outcome: str


def gauss_newton(
    equations: BatchEquations, start: Tensor, directions: Tensor, job: Job, iterations: int
) -> Solved:
    """Solve the equations by the iteratively regularised Gauss-Newton method (Bakushinskii, 1992).

    With inputs x = start + sum w_k direction_k, a step goes to the minimum of
    |r + J (w' - w)|^2 + a |w'|^2, where a falls from step to step. Where equations leave inputs
    open, those nearest to the start result, as the directions measure it. The derivatives J and
    the factored matrix serve further steps while these help (Shamanskii, 1967).

    Args:
        equations: The equations of B examples.
        start: Where each input starts (*shape).
        directions: (n, *shape); their lengths are how much inputs vary along them.
        job: Whose budget counts the derivatives' computations.
        iterations: How often derivatives are computed at most.

    Raises:
        ValueError: There are too many unknowns for a dense matrix.
    """
    examples, number = equations.examples, len(directions)
    if examples * number > LARGEST:
        raise ValueError(
            f"{examples} examples of {number:,} values are {examples * number:,} unknowns, and "
            f"Gauss-Newton takes at most {LARGEST:,}. inverting-gradients takes features of larger "
            "batches"
        )
    flat = directions.flatten(1)

    def inputs(point: Tensor) -> Tensor:
        return start + (point @ flat).view(examples, *start.shape)

    point = flat.new_zeros(examples, number)
    missed = equations.missed(inputs(point))
    damping, outcome = 0.0, "steps"
    for _ in job.steps(iterations):
        at = inputs(point)
        slopes = [equations.slopes(one, at[one], directions) for one in range(examples)]
        matrix = _normal(slopes, equations.features)
        damping = FALL * damping or FIRST * float(matrix.diagonal().mean())
        helped = False
        for _ in range(TRIES):
            damped = matrix.clone()
            damped.diagonal().add_(damping)
            factor, broken = torch.linalg.cholesky_ex(damped)
            while not broken:
                slope = _transposed(slopes, missed, equations.features) + damping * point
                step = torch.cholesky_solve(slope.view(-1, 1), factor).view_as(point)
                now = equations.missed(inputs(point - step))
                if not now.norm() < missed.norm():
                    break
                worth = bool(now.norm() < WORTH * missed.norm())
                point, missed, helped = point - step, now, True
                if not worth:
                    break
            if helped:
                break
            damping *= RISE
        size = _mean_square(missed)
        job.progress(job.iterations, size**2)
        if size < ROUNDING or not helped:
            outcome = "matched" if size < ROUNDING else "stalled"
            break
    else:
        outcome = "budget" if job.budget is not None and job.iterations >= job.budget else "steps"
    return Solved(inputs(point), _mean_square(missed), outcome)


def _normal(slopes: list[Tensor], features: int) -> Tensor:
    """The lower triangle of J J^T, block by block of two examples.

    Rows of features depend on their own example alone, so that they fill diagonal blocks only.
    """
    number = len(slopes[0])
    found = slopes[0].new_zeros(len(slopes) * number, len(slopes) * number)
    for row, ours in enumerate(slopes):
        for column, theirs in enumerate(slopes[: row + 1]):
            of = slice(0 if row == column else features, None)
            block = found[row * number : (row + 1) * number, column * number :][:, :number]
            torch.mm(ours[:, of], theirs[:, of].T, out=block)
    return found


def _transposed(slopes: list[Tensor], missed: Tensor, features: int) -> Tensor:
    """The slope of half the sum of squares (B, n)."""
    rest = missed[len(slopes) * features :]
    return torch.stack(
        [
            own[:, :features] @ missed[number * features : (number + 1) * features]
            + own[:, features:] @ rest
            for number, own in enumerate(slopes)
        ]
    )


def _mean_square(missed: Tensor) -> float:
    """The root mean square of equations."""
    return float(missed.square().mean().sqrt())
