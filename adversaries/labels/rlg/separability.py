"""Which columns a hyperplane through the origin separates from all others, by linear programs.

Column q_c is separable iff some r has r.q_c < 0 and r.q_j >= 0 for every j != c, that is iff q_c is
outside the convex cone of the other columns (Farkas). Lengths of columns do not matter, so all are
normalised; a zero column is in every cone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

__all__ = [
    "Array",
    "Indices",
    "SolverError",
    "Verdict",
    "by_lp",
    "by_perceptron",
    "indices",
    "normalised",
    "screened",
    "separates",
]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

SCREEN = 500
"""Columns of the largest norm that the paper's perceptron screens against."""

EPOCHS = 50
"""Passes of the perceptron over them."""


class SolverError(RuntimeError):
    """The LP solver ended in neither a solution nor a proof that there is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which columns are separable from all others, and how that was decided.

    Attributes:
        accepted: Separable columns.
        margins: For accepted columns a proven lower bound for the sine of the angle to the cone of
            all others, where the solver has one.
        undecided: Columns left to the LP, because rounding could decide.
        failed: Undecided columns on which the LP ended in an error; never accepted.
        lps: Number of linear programs solved.
    """

    accepted: frozenset[int]
    margins: dict[int, float]
    undecided: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    lps: int = 0


def normalised(q: Array) -> Array:
    """The columns of (S, C) at length 1; zero columns stay."""
    lengths = np.linalg.norm(q, axis=0)
    return q / np.where(lengths > 0, lengths, 1)


def separates(q: Array, c: int, others: Indices) -> Array | None:
    """A separator r (S,) of column c from `others`, by one feasibility LP; None if there is none.

    r.q_c = -1 and -r.q_j <= 0: the minimum of Eq. 4 is unbounded wherever it is negative at all.
    Raises `SolverError` unless HiGHS says optimal or infeasible, without presolving if need be.
    """
    others = others[others != c]
    if not q[:, c].any():
        return None
    for presolve in (True, False):
        solved = linprog(
            np.zeros(len(q)),
            A_ub=-q[:, others].T,
            b_ub=np.zeros(len(others)),
            A_eq=q[:, [c]].T,
            b_eq=[-1.0],
            bounds=(None, None),
            method="highs",
            options={"presolve": presolve},
        )
        if solved.status in (0, 2):
            break
    if solved.status == 2:
        return None
    if solved.status != 0 or solved.x is None:
        raise SolverError(f"class {c}: {solved.message}")
    found: Array = solved.x
    return found


def by_lp(
    q: Array, candidates: Iterable[int] | None = None, against: Iterable[int] | None = None
) -> Verdict:
    """One feasibility LP (Eq. 4) a candidate, in q (S, C) with columns of length 1 or 0.

    candidates: all where left out. against: the columns to separate from, likewise.
    """
    others = indices(q, against)
    accepted, failed, margins = set(), set(), {}
    tried = [int(c) for c in indices(q, candidates)]
    for c in tried:
        try:
            r = separates(q, c, others)
        except SolverError:
            failed.add(c)
            continue
        if r is not None:
            accepted.add(c)
            margins[c] = 1 / float(np.linalg.norm(r))
    return Verdict(
        frozenset(accepted), margins, undecided=frozenset(failed), failed=frozenset(failed),
        lps=len(tried),
    )  # fmt: skip


def by_perceptron(q: Array, lengths: Array, against: Iterable[int] | None = None) -> Verdict:
    """The paper's two rounds: perceptrons screen, then one LP for each column that passed.

    q: (S, C), columns of length 1 or 0; lengths (C,): what they were, to screen against the 500
    longest. A perceptron that finds no separator within its passes drops the column: of a small
    margin it may be wrong, so this is no exact solver.
    """
    others = indices(q, against)
    largest = others[np.argsort(-lengths[others], kind="stable")[:SCREEN]]
    return by_lp(q, screened(q, largest).tolist(), others)


def screened(q: Array, against: Indices) -> Indices:
    """The columns that a perceptron without bias, given 50 passes, separates from some others."""
    going = np.flatnonzero(q.any(axis=0))
    r, passed = -q[:, going].T.copy(), []
    for _ in range(EPOCHS):
        mistaken = np.zeros(len(going), dtype=bool)
        for j in against:
            wrong = (r @ q[:, j] <= 0) & (going != j)
            r[wrong] += q[:, j]
            mistaken |= wrong
        wrong = np.einsum("cs,sc->c", r, q[:, going]) >= 0
        r[wrong] -= q[:, going[wrong]].T
        mistaken |= wrong
        passed += going[~mistaken].tolist()
        going, r = going[mistaken], r[mistaken]
        if not len(going):
            break
    return np.array(sorted(passed), dtype=np.intp)


def indices(q: Array, chosen: Iterable[int] | None) -> Indices:
    """The chosen columns of q in order, all of them for None."""
    if chosen is None:
        return np.arange(q.shape[1])
    return np.array(sorted(chosen), dtype=np.intp)
