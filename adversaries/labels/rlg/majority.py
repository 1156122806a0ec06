"""RLG as its authors' code decides: few columns, and for speech their two solvers as they end.

What it does is that of Dang et al.'s published scripts, for images and for speech.
"""

from typing import Any

import numpy as np

from adversaries.labels.rlg.separability import Array, Indices, normalised
from adversaries.labels.rlg.spanning import by_spanning

__all__ = ["by_majority", "cvxopt"]

IMAGES = 199
"""Columns of the largest norm that their program for images separates from."""

SPEECH, SCREEN = 5000, 1000
"""The same for speech, and the random columns that its perceptron screens against."""

BOUND = 1e-8
"""r.q_c <= -BOUND in the program for speech: less than its solver tells from 0."""

MISSING = (
    'rlg with accept = "authors" on sequences needs their solver, cvxopt: pip install -e '
    "'.[authors]' in fedsim's folder"
)


def cvxopt() -> Any:
    """The solver of their linear programs. Raises `ModuleNotFoundError` that says how to get it."""
    try:
        from cvxopt import matrix, solvers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    return matrix, solvers


def by_majority(q: Array, rng: np.random.Generator, *, speech: bool) -> tuple[frozenset[int], int]:
    """Accepted classes, and how many of them by vote, from the right singular vectors q (S, C).

    For images a class must be separable from the longest columns alone. For speech it must pass a
    perceptron, and then a linear program returns a vector on whose positive side most of the
    longest columns lie. That program is unbounded where the class is separable, and the vector a
    ray. Elsewhere its bound is below the solver's tolerance: it ends with a vector of about that
    size, on which the columns vote, or with none. How it ends is the solver's own affair, so it is
    theirs that is asked; on images, where a vector must separate by .1, any exact one does.
    """
    lengths = np.linalg.norm(q, axis=0)
    longest = np.argsort(-lengths, kind="stable")
    if not speech:
        separable = by_spanning(normalised(q), lengths, longest[:IMAGES].tolist()).accepted
        return separable & frozenset(np.flatnonzero(lengths).tolist()), 0
    accepted, voted = set(), 0
    for c in _screened(q, rng).tolist():
        others = longest[: SPEECH + 1]
        ray, r = _program(q, c, others[others != c][:SPEECH])
        if r is not None and 2 * (r >= 0).sum() > len(r) + 1:
            accepted.add(c)
            voted += not ray
    return frozenset(accepted), voted


def _screened(q: Array, rng: np.random.Generator) -> Indices:
    """Columns that scikit-learn's perceptron, with its intercept, separates from some others.

    The columns' lengths of about .01 matter: a mistake costs little more than the intercept's step
    of 1, and the fit ends once five epochs have saved less than 1e-3 a column, 1 in all. So it ends
    after six, which find the labels, whose columns point away from all others, and few more.
    """
    from sklearn import config_context
    from sklearn.linear_model import Perceptron

    columns = np.ascontiguousarray(q.T)
    last = len(columns) - 1
    size = min(SCREEN, last)
    sides = np.repeat([1.0, -1.0], [1, size])
    perceptron, passed = Perceptron(tol=1e-3, max_iter=1000), []
    with config_context(assume_finite=True, skip_parameter_validation=True):
        for c in range(len(columns)):
            drawn = rng.choice(last, size, replace=False, shuffle=False)
            rows = columns[np.r_[c, drawn + (drawn >= c)]]
            perceptron.fit(rows, sides)
            if ((rows @ perceptron.coef_[0] + perceptron.intercept_ > 0) == (sides > 0)).all():
                passed.append(c)
    return np.array(passed, dtype=np.intp)


def _program(q: Array, c: int, others: Indices) -> tuple[bool, Array | None]:
    """The least r.q_c with r.q_c <= -BOUND and r.q_j >= 0: whether r is a ray, and all r.q_j."""
    matrix, solvers = cvxopt()
    rows = np.vstack([q[:, [c]].T, -q[:, others].T])
    bound = np.repeat([-BOUND, 0.0], [1, len(others)])
    options = {"show_progress": False}
    solved = solvers.lp(matrix(q[:, c]), matrix(rows), matrix(bound), options=options)
    if solved["x"] is None:
        return False, None
    sides: Array = np.ravel(solved["x"]) @ q[:, others]
    return solved["status"] == "dual infeasible", sides
