"""Candidate tokens for each position: those whose input lies in the first layer's row space."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from adversaries.text.dager.first_layers import First
from adversaries.text.dager.row_spaces import Span

POSITIONS = 32
ROWS = 8192
"""Numbers of positions and of tokens that are computed at once."""

QUANTILE = 0.01
OUTLYING = 0.5
"""Under noise: a token is a candidate if its residual is below `OUTLYING` times this quantile of
all residuals of its position."""

ALIKE = 2.0
"""Under noise: a token is a candidate up to this multiple of the largest of the positions' lowest
residuals."""

MOST = 12
"""Under noise: the largest number of candidates of a position."""

LOOSER, LOOSEST = 3.0, 0.03
"""Factor by which the tolerance grows while fewer tokens pass than the row space has dimensions,
and its largest value."""

CROWDED = 0.25
"""Share of the vocabulary at one position above which the row space is no longer informative."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The candidate tokens of each position.

    Attributes:
        tokens: Token ids (k,) int64 of each position, in ascending order of residual.
        residuals: The lowest distance from the row space at each position, relative to the norm.
    """

    tokens: list[Tensor]
    residuals: list[float]


def candidates(
    first: First, span: Span, words: Tensor, allowed: Tensor, longest: int, tolerance: float
) -> Candidates:
    """Find candidate tokens position by position, up to the first position without any.

    Args:
        first: The first layers of the model.
        span: Row space of the first layers.
        words: Word embeddings, (V, d).
        allowed: Tokens that a batch may hold, (V,) bool.
        longest: The largest number of positions.
        tolerance: Largest distance of an input from the row space, relative to its norm. It is
            raised while too few tokens pass, and to what rounding of sent weights may move the
            input by; under noise, outlying tokens pass instead.

    Raises:
        ValueError: So many tokens pass that the row space is not informative.
    """
    # Without position embeddings, the input of a token is the same at every position.
    placed = first.placed
    longest, distinct = (min(longest, span.rank),) * 2 if placed else (longest, 1)
    off = _Sums.of(first, span, words, longest) or partial(_fed, first, span, len(words))
    places = [(p, min(p + POSITIONS, distinct)) for p in range(0, distinct, POSITIONS)]
    parts = torch.cat([off(*one) for one in places])
    residuals = torch.where(allowed, parts, torch.inf).expand(longest, -1)
    bounds = torch.full((longest, 1), tolerance, device=residuals.device, dtype=residuals.dtype)
    if span.blur is not None:
        moved = torch.cat([off(*one, blurred=True) for one in places])
        bounds = bounds.maximum(moved.expand(longest, -1))
    if span.noisy:
        place = max(1, int(QUANTILE * int(allowed.sum())))
        usual = residuals.kthvalue(place, dim=1, keepdim=True).values
        # Noise moves all inputs of the row space by about the same distance.
        lowest = residuals.min(dim=1, keepdim=True).values
        inside = (lowest < OUTLYING * usual).long().cumprod(dim=0).bool()
        level = torch.where(inside, lowest, 0).max() * ALIKE
        bounds = bounds.maximum((OUTLYING * usual).clamp(max=float(level)))
    while True:
        passed = residuals < bounds
        counts = passed.sum(dim=1)
        # A text has a token at every position up to its last one.
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
                f"spans {span.rank} of {span.width} dimensions{narrow}, too many to "
                "distinguish tokens. It needs smaller batches, shorter texts or a wider model"
            )
    found = [passed[p].nonzero().flatten() for p in range(end)]
    most = MOST if span.noisy else None
    found = [one[residuals[p, one].argsort()][:most] for p, one in enumerate(found)]
    lowest = residuals[:end].min(dim=1).values if end else residuals.new_zeros(0)
    return Candidates(found, lowest.tolist())


def _fed(
    first: First, span: Span, size: int, start: int, end: int, *, blurred: bool = False
) -> Tensor:
    """Distances (end - start, V) from the row space, by feeding every token at every position.

    With `blurred`, the distances by which rounding of sent weights may move them.
    """
    every, shift = (torch.arange(n, device=first.device) for n in (size, end))
    found = torch.empty(end - start, size, device=first.device)
    for some in torch.split(every, ROWS // end + 1):
        # Row k holds token k + p at position p, so all rows hold every pair once.
        ids = (some[:, None] + shift) % size
        off = first.off(span, ids, blurred=blurred)[:, start:]
        found[torch.arange(end - start, device=ids.device), ids[:, start:]] = off.float()
    return found


class _Sums:
    """Distances for inputs that are a layer norm of word embedding plus position embedding.

    The input is x = g C(w_v + u_p) / s + h with centring C, standard deviation s, and weight g and
    bias h of the layer norm. Apart from s it is a sum, so the squared distance of every x follows
    from inner products of w_v with the row space, with u_p and with h: one matrix product with the
    vocabulary. ||Px||^2 = ||x||^2 - ||S'x||^2 cancels all but 1e-8 of x in float64, and everything
    in float32.
    """

    def __init__(self, span: Span, words: Tensor, places: Tensor, g: Tensor, h: Tensor, eps: float):
        self._words, self._places = words, _centred(places.double())
        self._basis, self._g, self._h, self._eps = span.basis.to(words.device), g, h, eps
        self._blur = None if span.blur is None else span.blur.to(words.device)

    @classmethod
    def of(cls, first: First, span: Span, words: Tensor, longest: int) -> "_Sums | None":
        """None for a model whose inputs are computed differently."""
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

    def __call__(self, start: int, end: int, *, blurred: bool = False) -> Tensor:
        """Distances (end - start, V) of all tokens at positions `start` to `end` - 1.

        With `blurred`, the distances by which rounding of sent weights may move them.
        """
        places, g, h, basis = self._places[start:end], self._g, self._h, self._basis
        if blurred and self._blur is not None:
            basis = basis * self._blur
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
            apart = within if blurred else whole - within
            found.append((apart.clamp(min=0) / whole).sqrt().mT)
        return torch.cat(found, dim=1)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True)


def _norms(rows: Tensor) -> Tensor:
    return rows.square().sum(dim=1)
