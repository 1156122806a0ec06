"""Dummy texts: what is sought of them, how far their gradients are from those observed."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversaries.text.text_attack import Case
from fedsim.gradients import TextDistance, nearest_tokens, norm_gap
from fedsim.records import Tokens

__all__ = ["MATCHED", "DummyTexts"]

MATCHED = 1e-4
"""Distance, as a share of that of a gradient of zero, that no other tokens come down to."""

UNUSED = "[unused"
"""How BERT's vocabulary names pieces that no text has."""


class DummyTexts:
    """The distance of dummy texts of several cases, as flat points (R, n), n = B L d.

    What frames a text is known, and so is what was masked where the labels are those of masked
    words: their embeddings are put in wherever points say something else. L is that of the longest.
    Called with points and cases (R,) int64 it returns the distance plus `norm_weight` times LAMP's
    regulariser, (R,).

    words: embeddings (V, d).
    """

    def __init__(
        self,
        far: TextDistance,
        cases: Sequence[Case],
        tokens: Tokens,
        words: Tensor,
        *,
        norm_weight: float = 0.0,
    ) -> None:
        self.far, self.norm_weight = far, norm_weight
        self.words, self.lengths = words, torch.stack([case.lengths for case in cases])
        batch, longest = len(cases[0].lengths), int(self.lengths.max())
        self.shape = (batch, longest, words.shape[1])
        self.typical = float(words.norm(dim=1).mean())
        self.spread = self.typical / words.shape[1] ** 0.5
        """Standard deviation of coordinates that makes an embedding as long as those."""
        self.matched: Tensor = MATCHED * far.zero_distance
        self.known = torch.full((len(cases), batch, longest), -1)
        """Which token stands where, (cases, B, L); -1 where that is sought."""
        self.shown = torch.full_like(self.known, -1)
        """Which was fed there: the mask's, where one was masked."""
        mask = tokens.special.get("mask", -1)
        for at, case in enumerate(cases):
            for text, length in enumerate(case.lengths.tolist()):
                for ids in (self.known[at, text], self.shown[at, text]):
                    ids[: len(tokens.prefix)] = torch.tensor(tokens.prefix, dtype=torch.int64)
                    ids[length - len(tokens.suffix) : length] = torch.tensor(
                        tokens.suffix, dtype=torch.int64
                    )
                if case.labels.ndim == 2:
                    masked = (case.labels[text] >= 0).nonzero().flatten()
                    self.known[at, text, masked] = case.labels[text, masked]
                    self.shown[at, text, masked] = mask
        inside = torch.arange(longest) < self.lengths[..., None]
        self.sought = (self.known < 0) & inside
        """Positions that points say something of, (cases, B, L) bool."""
        fed = words[self.shown.clamp(min=0).to(words.device)]
        there = (self.shown >= 0)[..., None].to(words.device)
        self._fixed = torch.where(there, fed, torch.zeros_like(fed))
        self._free = self.sought[..., None].to(words.device)
        self._forbidden = sorted(
            set(tokens.marks)
            | {at for at, piece in enumerate(tokens.pieces) if piece.startswith(UNUSED)}
        )

    def embedded(self, points: Tensor, cases: Tensor) -> Tensor:
        """Word embeddings (R, B, L, d) of whole texts."""
        return torch.where(self._free[cases], points.view(-1, *self.shape), self._fixed[cases])

    def __call__(self, points: Tensor, cases: Tensor) -> Tensor:
        """Objective (R,) of R points: gradient distance, and the penalty on embedding lengths."""
        embedded = self.embedded(points, cases)
        distance = self.far(embedded, cases)
        self._last = distance.detach()
        if not self.norm_weight:
            return distance
        lengths = self.lengths.to(points.device)[cases]
        return distance + self.norm_weight * norm_gap(embedded, self.typical, lengths=lengths)

    def proof(self, points: Tensor, cases: Tensor) -> Tensor:
        """Distance (R,) of the tokens nearest to the last points, if `MATCHED`, else infinity.

        Dummy embeddings come that close in the wrong order, or between tokens, too: only tokens
        prove anything.
        """
        found = torch.full_like(self._last, torch.inf)
        close = (self._last < self.matched[cases]).nonzero().flatten()
        if len(close):
            with torch.no_grad():
                tokens = self.fed(self.read(points[close], cases[close]), cases[close])
                apart = self.far(self.embedded(tokens, cases[close]), cases[close])
            found[close] = torch.where(apart < self.matched[cases[close]], apart, found[close])
        return found

    def start(self, rng: torch.Generator, case: int, count: int, scale: float) -> Tensor:
        """Random points (count, n) of a case, N(0, scale^2) in every coordinate that is sought."""
        sought = self.sought[case]
        drawn = torch.randn(count, int(sought.sum()), self.shape[2], generator=rng)
        found = self.words.new_zeros(count, *self.shape)
        found[:, sought.to(found.device)] = scale * drawn.to(found)
        return found.flatten(1)

    def fed(self, ids: Tensor, cases: Tensor) -> Tensor:
        """Points (R, n) of tokens (R, B, L)."""
        return self.embedded(self.words[ids.to(self.words.device)].flatten(1), cases).flatten(1)

    def read(self, points: Tensor, cases: Tensor) -> Tensor:
        """The tokens (R, B, L) int64 nearest to points, on the CPU; 0 beyond a text's end."""
        nearest = nearest_tokens(
            self.embedded(points, cases), self.words, forbidden=self._forbidden
        ).cpu()
        at = cases.cpu()
        known = self.known[at]
        return torch.where(self.sought[at], nearest, known.clamp(min=0))
