"""Linear programs that find the columns separable from all others by a hyperplane (RLG, Eq. 4).

Column q_c is separable if and only if some r has r.q_c < 0 and r.q_j >= 0 for every j != c. By
Farkas' lemma this means that q_c is outside the convex cone of the other columns. Lengths of
columns do not matter, so all are normalised; a zero column is in every cone.

Source: Dang et al., Revealing and Protecting Labels in Distributed Training, NeurIPS 2021.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

SCREEN = 500
"""Number of columns, those of largest norm, that the paper's perceptron separates from."""

EPOCHS = 50
"""Largest number of passes of the perceptron over them."""


WAYS: tuple[tuple[Literal["highs", "highs-ipm"], bool], ...] = (
    ("highs", True),
    ("highs", False),
    ("highs-ipm", True),
)
"""Methods of HiGHS, and whether it presolves, in turn until one finishes."""


class SolverError(RuntimeError):
    """The LP solver found neither a solution nor a proof that there is none."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which columns are separable from all others, and how that was decided.

    Attributes:
        margins: For each separable column a proven lower bound of the sine of its angle to the
            cone of all others.
        undecided: Columns that only the LP could decide, because of rounding.
        failed: Undecided columns on which the LP ended in an error; never accepted.
        lps: Number of linear programs solved.
    """

    margins: dict[int, float]
    undecided: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    lps: int = 0

    @property
    def accepted(self) -> frozenset[int]:
        """The separable columns."""
        return frozenset(self.margins)


def normalised(q: Array) -> Array:
    """Scale the columns of a matrix (S, C) to length 1; zero columns stay zero."""
    lengths = np.linalg.norm(q, axis=0)
    return q / np.where(lengths > 0, lengths, 1)


def separates(q: Array, c: int, others: Indices) -> Array | None:
    """Find a separator of one column from others by a feasibility LP.

    The LP asks for r.q_c = -1 and -r.q_j <= 0, because the minimum of Eq. 4 is unbounded whenever
    it is negative. If HiGHS does not finish, it runs again without presolving, and then by interior
    points.

    Args:
        q: Columns (S, C) of length 1 or 0.
        c: Index of the column.
        others: Indices of the columns to separate it from; c among them is ignored.

    Returns:
        A separator r (S,), or None if there is none.

    Raises:
        SolverError: HiGHS found neither a solution nor a proof that there is none.
    """
    from scipy.optimize import linprog  # takes half a second, which each process would wait for

    others = others[others != c]
    if not q[:, c].any():
        return None
    for method, presolve in WAYS:
        solved = linprog(
            np.zeros(len(q)),
            A_ub=-q[:, others].T,
            b_ub=np.zeros(len(others)),
            A_eq=q[:, [c]].T,
            b_eq=[-1.0],
            bounds=(None, None),
            method=method,
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
    """Decide each candidate by one feasibility LP (Eq. 4).

    Args:
        q: Columns (S, C) of length 1 or 0.
        candidates: Indices of the columns to decide; None: all.
        against: Indices of the columns to separate from; None: all.
    """
    tried = indices(q, candidates).tolist()
    margins, failed = by_programs(q, tried, indices(q, against))
    return Verdict(margins, undecided=failed, failed=failed, lps=len(tried))


def by_programs(
    q: Array, tried: Iterable[int], others: Indices
) -> tuple[dict[int, float], frozenset[int]]:
    """Run one feasibility LP for each column.

    Returns:
        The margins of the separable columns, and the columns for which the solver failed.
    """
    margins, failed = {}, set()
    for c in tried:
        try:
            r = separates(q, c, others)
        except SolverError:
            failed.add(c)
        else:
            if r is not None:
                margins[c] = 1 / float(np.linalg.norm(r))
    return margins, frozenset(failed)


def by_perceptron(q: Array, lengths: Array, against: Iterable[int] | None = None) -> Verdict:
    """Decide columns in the paper's two rounds: perceptrons first, an LP for each that passed.

    This solver is not exact: a perceptron that finds no separator within its passes rejects the
    column, which is wrong for some columns of small margin.

    Args:
        q: Columns (S, C) of length 1 or 0.
        lengths: Norms of the columns before they were normalised, (C,). Perceptrons separate from
            the 500 longest.
        against: Indices of the columns to separate from; None: all.
    """
    others = indices(q, against)
    largest = others[np.argsort(-lengths[others], kind="stable")[:SCREEN]]
    return by_lp(q, screened(q, largest).tolist(), others)


def screened(q: Array, against: Indices) -> Indices:
    """Return the columns that a perceptron without bias separates from others in 50 passes.

    Args:
        q: Columns (S, C) of length 1 or 0.
        against: Indices of the columns to separate from.
    """
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
    """Return the sorted indices of the chosen columns of q, all of them for None."""
    if chosen is None:
        return np.arange(q.shape[1])
    return np.array(sorted(chosen), dtype=np.intp)
