"""Which tokens may stand where: those whose embedding lies in the first layer's span."""

from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.text.dager.first_layers import First
from adversaries.text.row_space import Span

__all__ = ["Candidates", "candidates"]

POSITIONS = 32
ROWS = 8192
"""Positions, and tokens, that are looked at at once."""

QUANTILE = 0.01
OUTLYING = 0.5
"""Of a noisy gradient: a token counts below this share of the residual that so many exceed not."""

ALIKE = 2.0
"""Of a noisy gradient: a token counts up to so many times the greatest of the lowest residuals."""

MOST = 12
"""Of a noisy gradient: the likeliest tokens of a position that are kept."""

LOOSER, LOOSEST = 3.0, 0.03
"""Factor by which the tolerance grows while fewer tokens pass than the span has dimensions, each of
which is one's; and where that ends."""

CROWDED = 0.25
"""Share of the vocabulary that passes at one position where a span tells nothing any more."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """tokens: for each position the ids (k,) int64 that may stand there, the likeliest first.

    residuals: the lowest distance from the span at each, as a share of the embedding's norm.
    """

    tokens: list[Tensor]
    residuals: list[float]

    @property
    def counts(self) -> list[int]:
        """How many there are at each position."""
        return [len(one) for one in self.tokens]


def candidates(
    first: First, span: Span, words: Tensor, allowed: Tensor, longest: int, tolerance: float
) -> Candidates:
    """Tokens position by position, up to the first where there is none.

    words (V, d): word embeddings. allowed (V,) bool. longest: positions at most. tolerance: share
    of its norm that an input may have off the span, raised while too few pass; with noise, what
    stands out counts instead.
    Raises `ValueError` where so much of the vocabulary passes that nothing is told.
    """
    # Each token at each position has a direction of its own; without positions each token has.
    placed = first.placed
    longest, told = (min(longest, span.rank),) * 2 if placed else (longest, 1)
    off = _Sums.of(first, span, words, longest) or _Fed(first, span, len(words))
    parts = [off(p, min(p + POSITIONS, told)) for p in range(0, told, POSITIONS)]
    residuals = torch.where(allowed, torch.cat(parts), torch.inf).expand(longest, -1)
    bounds = torch.full((longest, 1), tolerance, device=residuals.device, dtype=residuals.dtype)
    if span.noisy:
        place = max(1, int(QUANTILE * int(allowed.sum())))
        usual = residuals.kthvalue(place, dim=1, keepdim=True).values
        # What noise puts off the span is alike for all that were in it.
        lowest = residuals.min(dim=1, keepdim=True).values
        inside = (lowest < OUTLYING * usual).long().cumprod(dim=0).bool()
        level = torch.where(inside, lowest, 0).max() * ALIKE
        bounds = bounds.maximum((OUTLYING * usual).clamp(max=float(level)))
    while True:
        passed = residuals < bounds
        counts = passed.sum(dim=1)
        # One token of a text stands at every position up to its last.
        ends = (counts == 0).nonzero().flatten().tolist()
        end = ends[0] if ends else longest
        fitting = int(counts[:end].sum() if placed else counts[:1].sum())
        if span.noisy or fitting >= span.rank or float(bounds.max()) > LOOSEST:
            break
        bounds = bounds * LOOSER
    for place in range(end):
        if int(counts[place]) > CROWDED * len(words):
            reached = words.shape[1]
            narrow = f", of which word embeddings reach {reached}" if reached < span.width else ""
            raise ValueError(
                f"{int(counts[place])} of {len(words)} tokens fit position {place}: the gradient "
                f"spans {span.rank} of {span.width} dimensions{narrow}, too many to tell tokens "
                "apart. Smaller batches or shorter texts leak; so does a wider model"
            )
    found = [passed[p].nonzero().flatten() for p in range(end)]
    most = MOST if span.noisy else None
    found = [one[residuals[p, one].argsort()][:most] for p, one in enumerate(found)]
    lowest = residuals[:end].min(dim=1).values if end else residuals.new_zeros(0)
    return Candidates(found, lowest.tolist())


class _Fed:
    """Distances from the span by feeding every token at every position."""

    def __init__(self, first: First, span: Span, size: int) -> None:
        self._first, self._span, self._size = first, span, size

    def __call__(self, start: int, end: int) -> Tensor:
        """(positions, V) for positions from start to before end."""
        shift = torch.arange(end, device=self._first.device)
        found = torch.empty(end - start, self._size, device=self._first.device)
        for some in torch.split(
            torch.arange(self._size, device=self._first.device), ROWS // end + 1
        ):
            # Row k holds k + p at position p, so that all rows together hold every pair once.
            ids = (some[:, None] + shift) % self._size
            off = self._first.off(self._span, ids)[:, start:]
            found[torch.arange(end - start, device=ids.device), ids[:, start:]] = off.float()
        return found


class _Sums:
    """The same where an input is the layer norm of a word's embedding plus its position's.

    x = g C(w_v + u_p) / s + h, with C centring, s the deviation, g and h the norm's: centring and
    scaling are all that keeps x from being a sum, so that the squared distance of every x is made
    of inner products of w_v with the span, with u_p and with h: one product with the vocabulary.
    ||Px||^2 = ||x||^2 - ||S'x||^2 cancels all but 1e-8 of x in float64, and in float32 everything.
    """

    def __init__(self, span: Span, words: Tensor, places: Tensor, g: Tensor, h: Tensor, eps: float):
        self._words, self._places = words, _centred(places.double())
        self._basis, self._g, self._h, self._eps = span.basis.to(words.device), g, h, eps

    @classmethod
    def of(cls, first: First, span: Span, words: Tensor, longest: int) -> "_Sums | None":
        """None for a model that is made in another way."""
        rng = torch.Generator().manual_seed(0)
        ids = torch.randint(len(words), (2, longest), generator=rng).to(first.device)
        entered = first.entering(span.layers[0], ids)
        used = [one for one in first.norms.values() if torch.equal(one[2], entered)]
        if not used or used[-1][1].shape != (2, longest, words.shape[1]):
            return None
        norm, before, _ = used[-1]
        places = before - words[ids]
        if float((places[0] - places[1]).abs().max()) > 1e-5 * float(before.abs().max()):
            return None
        one = torch.ones(words.shape[1], dtype=torch.float64, device=words.device)
        g = one if norm.weight is None else norm.weight.detach().double()
        h = 0 * one if norm.bias is None else norm.bias.detach().double()
        return cls(span, words, places[0], g, h, norm.eps)

    def __call__(self, start: int, end: int) -> Tensor:
        """(positions, V) for positions from start to before end."""
        places, g, h, basis = self._places[start:end], self._g, self._h, self._basis
        u, scaled = g * places, g[:, None] * basis
        us, hs = u @ basis, h @ basis
        found = list[Tensor]()
        for rows in torch.split(self._words, ROWS):
            w = _centred(rows.double())
            ws, wu = w @ scaled, w @ (g * u).mT
            deviation = (
                (_norms(w)[:, None] + 2 * w @ places.mT + _norms(places)) / w.shape[1] + self._eps
            ).sqrt()
            both = _norms(g * w)[:, None] + 2 * wu + _norms(u)
            shift = ((w @ (g * h))[:, None] + u @ h) / deviation
            whole = both / deviation**2 + 2 * shift + h @ h
            both = _norms(ws)[:, None] + 2 * ws @ us.mT + _norms(us)
            shift = ((ws @ hs)[:, None] + us @ hs) / deviation
            within = both / deviation**2 + 2 * shift + hs @ hs
            found.append(((whole - within).clamp(min=0) / whole).sqrt().mT)
        return torch.cat(found, dim=1)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)


def _norms(rows: Tensor) -> Tensor:
    return rows.square().sum(dim=1)
