"""Labels as the columns that point away from all others: a rule for perturbed gradients.

Separability asks for signs only, so that thousands of small columns, turned by noise or by
rounding to few bits, count as much as those of the labels; under enough of it nothing is
separable. But columns of classes that are not in the batch are sums of p h with p > 0, and lie
about one direction; a label's column holds -h and lies across.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["by_margin", "otsu"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

FAINT = 1e-6
"""Of the largest column's length: shorter ones are never claimed."""

APART = 3.0
"""Standard deviations of the background's scores: a gap as wide below the claimed ones is none of
its own, wherever on the scale it lies."""

ROUNDS = 6
"""How often the background is taken anew."""


def by_margin(columns: Array, lengths: Array, size: int) -> frozenset[int]:
    """Classes that point away from the rest, at most `size`.

    columns (C, k): a class a row, of which the angles are taken. lengths (C,): of the gradient's
    own columns; zero where nothing was sent.

    A class's score is minus the mean cosine to the background, which is all classes at first and
    then those not claimed. Claimed are scores above Otsu's threshold (1979), which splits them into
    two groups of the least variance within, and above 0, unless a gap of three standard deviations
    of the background's scores sets them apart. A gradient of which few columns are left (no more
    than 2 S, the others zero) is told by their lengths: all of up to S, of more Otsu's part.
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
    """The threshold that splits scores (n,) into two groups of the least variance within."""
    ordered = np.sort(scores)
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    apart = sums[:-1] / below - (sums[-1] - sums[:-1]) / (len(ordered) - below)
    best = int((below * (len(ordered) - below) * apart**2).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


def _above(scores: Array, live: Mask, size: int, least: float = -np.inf) -> Mask:
    """Live classes above the threshold and above `least`, the `size` highest at most."""
    if live.sum() < 2:
        return live.copy()
    claimed: Mask = live & (scores > otsu(scores[live]))
    rest = scores[live & ~claimed]
    if not claimed.any():  # all scores are the same, as far as rounding lets them
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
