"""Label sets from perturbed gradients, by the columns that point away from all others.

Separability depends on signs only. Thousands of small columns, perturbed by noise or low precision,
therefore count as much as those of labels, and with enough noise no class is separable. However,
columns of classes that are not in the batch are sums of p h with p > 0 and cluster around one
direction, while a label's column contains -h and points away from it.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
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
    unit = _unit(columns)
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


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Array = rows / np.where(lengths > 0, lengths, 1)
    return unit
