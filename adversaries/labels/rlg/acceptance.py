"""RLG's acceptance rules besides separability: "margin", and "authors".

"margin" is for perturbed gradients: it claims the columns that point away from all others.
Separability depends on signs only. Thousands of small columns, perturbed by noise or low precision,
therefore count as much as those of labels, and with enough noise no class is separable. However,
columns of classes that are not in the batch are sums of p h with p > 0 and cluster around one
direction, while a label's column contains -h and points away from it.

"authors" follows the published scripts of Dang et al. (Revealing and Protecting Labels in
Distributed Training, NeurIPS 2021), which compare with few columns for images, and vote for speech.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from adversaries.labels.rlg.separability import Array, Indices, normalised
from adversaries.labels.rlg.spanning import by_spanning

Mask = NDArray[np.bool_]

FAINT = 1e-6
"""Share of the longest column's norm below which columns are never claimed."""

APART = 3.0
"""Gap below the claimed scores, in standard deviations of the background's, that sets them apart
whatever their sign."""

ROUNDS = 6
"""Iterations of the background's estimate, at most."""


def by_margin(columns: Array, lengths: Array, size: int) -> frozenset[int]:
    """Find the classes that point away from the rest.

    The score of a class is minus its mean cosine to the background, which is all classes at first
    and then those that are not claimed. Scores above Otsu's threshold (1979), which splits them
    into two groups of least variance, are claimed if they are above 0, or if a gap of three
    standard deviations of the background's scores separates them. If few columns are left (2 S at
    most, the others zero), their norms decide: all are claimed if they are S or fewer, otherwise
    those above Otsu's threshold.

    Args:
        columns: A row (k,) for each class, whose direction is used, (C, k).
        lengths: Norms of the gradient's columns (C,), zero if nothing was sent.
        size: Number of classes that are claimed at most, S.

    Returns:
        The claimed classes.
    """
    sent = lengths > 0
    if not sent.all() and sent.sum() <= 2 * size:
        scores = np.log(np.where(sent, lengths, 1), where=sent, out=np.full(len(sent), -np.inf))
        claimed = sent if sent.sum() <= size else _above(scores, sent, size)
        return frozenset(np.flatnonzero(claimed).tolist())
    long = np.linalg.norm(columns, axis=1, keepdims=True)
    unit = columns / np.where(long > 0, long, 1)
    live = lengths > FAINT * lengths.max()
    claimed = np.zeros(len(live), dtype=bool)
    for _ in range(ROUNDS):
        scores = -unit @ unit[~claimed].mean(axis=0)
        before, claimed = claimed, _above(scores, live, size, least=0.0)
        if (before == claimed).all() or claimed.all():
            break
    return frozenset(np.flatnonzero(claimed).tolist())


def otsu(scores: Array) -> float:
    """Return Otsu's threshold (1979), which splits scores (n,) into groups of least variance."""
    ordered = np.sort(scores)
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    apart = sums[:-1] / below - (sums[-1] - sums[:-1]) / (len(ordered) - below)
    best = int((below * (len(ordered) - below) * apart**2).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


def _above(scores: Array, live: Mask, size: int, least: float = -np.inf) -> Mask:
    """Return a mask of the live classes above Otsu's threshold, the `size` highest at most.

    Scores must also be above `least`, unless a gap separates them from all others.
    """
    if live.sum() < 2:
        return live.copy()
    claimed: Mask = live & (scores > otsu(scores[live]))
    rest = scores[live & ~claimed]
    if not claimed.any():  # all scores are equal up to rounding
        return claimed
    if scores[claimed].min() - rest.max() < APART * rest.std():
        claimed &= scores > least
    if claimed.sum() > size:
        order = np.argsort(np.where(claimed, -scores, np.inf), kind="stable")
        claimed[order[size:]] = False
    return claimed


IMAGES = 199
"""Number of columns, those of largest norm, that the linear program for images separates from."""

SPEECH, SCREEN = 5000, 1000
"""The same number for speech, and that of the random columns that its perceptron separates from."""

BOUND = 1e-8
"""Bound r.q_c <= -BOUND of the linear program for speech, which is below its solver's tolerance."""

MISSING = (
    'rlg with accept = "authors" on sequences needs their solver, cvxopt: pip install -e '
    "'.[authors]' in fedsim's folder"
)


def cvxopt() -> Any:
    """Import the authors' LP solver; raise `ModuleNotFoundError` if it is not installed."""
    try:
        from cvxopt import matrix, solvers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING) from error
    return matrix, solvers


def by_majority(q: Array, rng: np.random.Generator, *, speech: bool) -> tuple[frozenset[int], int]:
    """Decide which classes are in the batch, as the authors' scripts do.

    For images, a class must be separable from the longest columns alone. A separator must do so by
    .1 there, so that any exact solver decides alike.

    For speech, a class must pass a perceptron. A linear program then returns a vector, and the
    class is accepted if most of the longest columns lie on its positive side. If the class is
    separable, the program is unbounded and the vector is a ray. Otherwise the program's bound is
    below the solver's tolerance: the solver returns a vector of about that size, on which the
    columns vote, or none. Because this depends on the solver, the authors' own one is used.

    Args:
        q: Right singular vectors (S, C).
        rng: Draws the columns of the perceptrons.
        speech: Whether to decide as the script for speech does.

    Returns:
        Accepted classes, and how many of them were accepted by vote.
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
    """Return the columns that scikit-learn's perceptron, with intercept, separates from others.

    Columns keep their lengths of about .01, which matters: a mistake costs little more than the
    intercept's step of 1, and the fit stops when five epochs have improved the loss by less than
    1e-3 a column, 1 in total. It therefore stops after six epochs. These suffice for the labels,
    whose columns point away from all others, and for few other columns.
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
    """Minimise r.q_c subject to r.q_c <= -BOUND and r.q_j >= 0.

    Returns:
        Whether r is a ray (the program is unbounded), and the products r.q_j with `others`, None
        if the solver returns no vector.
    """
    matrix, solvers = cvxopt()
    rows = np.vstack([q[:, [c]].T, -q[:, others].T])
    bound = np.repeat([-BOUND, 0.0], [1, len(others)])
    options = {"show_progress": False}
    solved = solvers.lp(matrix(q[:, c]), matrix(rows), matrix(bound), options=options)
    if solved["x"] is None:
        return False, None
    sides: Array = np.ravel(solved["x"]) @ q[:, others]
    return solved["status"] == "dual infeasible", sides
