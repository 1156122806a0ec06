"""RLG as its authors' code decides: few columns, and for speech a vote where the program fails."""

import numpy as np

from adversaries.separability import Array, normalised, screened
from adversaries.spanning import by_spanning

__all__ = ["by_majority"]

IMAGES = 199
"""Columns of the largest norm that their program for images separates from."""

SPEECH, SCREEN = 5000, 1000
"""The same for speech, and the random columns that its perceptron screens against."""


def by_majority(q: Array, rng: np.random.Generator, *, speech: bool) -> tuple[frozenset[int], int]:
    """Accepted classes, and how many of them by vote, from the right singular vectors q (S, C).

    A class must be separable from the largest columns alone. For speech it must first pass a
    perceptron against random columns (the screen for images lets nearly all classes pass, and is
    left out), and it may also pass by vote: their program's bound, 1e-10, is below its solver's
    tolerance, so that it comes back with a vector of that size where nothing is separable, and a
    class passes if it lies on the vector's one side and most of the columns on the other. That
    vector is taken to be the least-squares solution of the constraints, which interior-point
    methods start from. Their code for images asks for a vector that separates by .1, and has no
    vote.
    """
    lengths = np.linalg.norm(q, axis=0)
    unit = normalised(q)
    largest = np.argsort(-lengths, kind="stable")[: SPEECH if speech else IMAGES]
    separable = by_spanning(unit, lengths, largest.tolist()).accepted
    if not speech:
        return separable & frozenset(np.flatnonzero(lengths).tolist()), 0
    tried = screened(unit, rng.permutation(q.shape[1])[:SCREEN])
    accepted = separable & frozenset(tried.tolist())
    gram, sums = q[:, largest] @ q[:, largest].T, q[:, largest].sum(axis=1)
    member = np.zeros(q.shape[1], dtype=bool)
    member[largest] = True
    voted = set()
    for c in set(tried.tolist()) - separable:
        own = q[:, c]
        # r.q_j = 1 for the others and -1 for its own, in least squares.
        a = gram if member[c] else gram + np.outer(own, own)
        r = np.linalg.lstsq(a, sums - own * (2 if member[c] else 1), rcond=None)[0]
        right = int((r @ q[:, largest[largest != c]] > 0).sum())
        if r @ own < 0 and 2 * right > int((largest != c).sum()):
            voted.add(c)
    return accepted | voted, len(voted)
