"""Dummy texts for gradient matching: which positions are unknown, and their gradients' distance."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversaries.text.text_attack import Candidate
from fedsim.gradients import TextDistance, nearest_tokens, norm_gap
from fedsim.records import Tokens

MATCHED = {"cosine": 1e-5, "l1+l2": 3e-6, "l2": 1e-9}
"""Share of the distance of a zero gradient below which only the true tokens get.

Of untrained BERT and GPT-2 of 64 values and of MiniLM-L6, the true tokens leave at most 5e-8, 5e-7
and 2e-10 in float32, and two swapped ones at least 5e-5, 2e-5 and 6e-9."""

UNUSED = "[unused"
"""Beginning of the pieces of BERT's vocabulary that no text contains."""


class DummyTexts:
    """The objective of text matching: the distance between dummy and observed gradients.

    Points (R, n) hold R batches of B dummy texts with L positions, n = B L d; L is the length of
    the longest text. Embeddings of known tokens replace those of the points: the special tokens
    around a text, and masked words if the labels say what they are. `which` (R,) int64 is the index
    of each point's candidate.

    Args:
        far: Distance between the gradients of texts and those observed.
        candidates: Labels and lengths of each batch, known or assumed.
        tokens: The vocabulary.
        words: Word embeddings (V, d).
        norm_weight: Weight of LAMP's regulariser, which keeps embeddings at their usual length.
    """

    def __init__(
        self,
        far: TextDistance,
        candidates: Sequence[Candidate],
        tokens: Tokens,
        words: Tensor,
        *,
        norm_weight: float = 0.0,
    ) -> None:
        self.far, self.norm_weight = far, norm_weight
        self.words = words
        self.lengths = torch.stack([candidate.lengths for candidate in candidates])
        batch, longest = len(candidates[0].lengths), int(self.lengths.max())
        self.shape = (batch, longest, words.shape[1])
        self.typical = float(words.norm(dim=1).mean())
        self.spread = self.typical / words.shape[1] ** 0.5
        """Standard deviation of coordinates that gives embeddings the vocabulary's mean length."""
        self.matched: Tensor = MATCHED[far.distance] * far.zero_distance
        self.known = torch.full((len(candidates), batch, longest), -1)
        """Known tokens, (candidates, B, L) int64; -1 at positions that are sought."""
        self.shown = torch.full_like(self.known, -1)
        """Tokens that are fed there: that of the mask for a masked word."""
        mask = tokens.special.get("mask", -1)
        frame = (tokens.prefix, tokens.suffix)
        before, after = (torch.tensor(part, dtype=torch.int64) for part in frame)
        for at, candidate in enumerate(candidates):
            for text, length in enumerate(candidate.lengths.tolist()):
                for ids in (self.known[at, text], self.shown[at, text]):
                    ids[: len(before)] = before
                    ids[length - len(after) : length] = after
                if candidate.labels.ndim == 2:
                    masked = (candidate.labels[text] >= 0).nonzero().flatten()
                    self.known[at, text, masked] = candidate.labels[text, masked]
                    self.shown[at, text, masked] = mask
        inside = torch.arange(longest) < self.lengths[..., None]
        self.sought = (self.known < 0) & inside
        """Positions whose tokens are sought, (candidates, B, L) bool."""
        fed = words[self.shown.clamp(min=0).to(words.device)]
        there = (self.shown >= 0)[..., None].to(words.device)
        self._fixed = torch.where(there, fed, torch.zeros_like(fed))
        self._free = self.sought[..., None].to(words.device)
        self._forbidden = sorted(
            set(tokens.marks)
            | {at for at, piece in enumerate(tokens.pieces) if piece.startswith(UNUSED)}
        )

    def embedded(self, points: Tensor, which: Tensor) -> Tensor:
        """Word embeddings (R, B, L, d) of points, with those of known tokens put in."""
        return torch.where(self._free[which], points.view(-1, *self.shape), self._fixed[which])

    def distance(self, points: Tensor, which: Tensor) -> Tensor:
        """Distances (R,) between the gradients of points (R, n) and those observed."""
        return self.far(self.embedded(points, which), which)

    def __call__(self, points: Tensor, which: Tensor) -> Tensor:
        """Objective (R,) of points (R, n): gradient distance plus the weighted regulariser."""
        embedded = self.embedded(points, which)
        distance = self.far(embedded, which)
        self._last = distance.detach()
        if not self.norm_weight:
            return distance
        lengths = self.lengths.to(points.device)[which]
        return distance + self.norm_weight * norm_gap(embedded, self.typical, lengths=lengths)

    def proof(self, points: Tensor, which: Tensor) -> Tensor:
        """Distance (R,) of the tokens nearest to the last points if it is a match, else infinity.

        The distance of the embeddings alone is no proof: it also gets this small for tokens in a
        wrong order, and between tokens.
        """
        found = torch.full_like(self._last, torch.inf)
        close = (self._last < self.matched[which]).nonzero().flatten()
        if len(close):
            with torch.no_grad():
                tokens = self.fed(self.read(points[close], which[close]), which[close])
                apart = self.distance(tokens, which[close])
            found[close] = torch.where(apart < self.matched[which[close]], apart, found[close])
        return found

    def start(self, rng: torch.Generator, candidate: int, count: int, scale: float) -> Tensor:
        """Draw points (count, n): N(0, scale^2) at the positions that a candidate leaves open."""
        sought = self.sought[candidate]
        drawn = torch.randn(count, int(sought.sum()), self.shape[2], generator=rng)
        found = self.words.new_zeros(count, *self.shape)
        found[:, sought.to(found.device)] = scale * drawn.to(found)
        return found.flatten(1)

    def fed(self, ids: Tensor, which: Tensor) -> Tensor:
        """Points (R, n) that are the embeddings of tokens (R, B, L)."""
        return self.embedded(self.words[ids.to(self.words.device)].flatten(1), which).flatten(1)

    def read(self, points: Tensor, which: Tensor) -> Tensor:
        """Tokens (R, B, L) int64 nearest to points, on the CPU; 0 beyond the end of a text."""
        nearest = nearest_tokens(
            self.embedded(points, which), self.words, forbidden=self._forbidden
        ).cpu()
        at = which.cpu()
        known = self.known[at]
        return torch.where(self.sought[at], nearest, known.clamp(min=0))

    def claimed(self, point: Tensor, candidate: int) -> tuple[list[Tensor], float]:
        """Tokens (L,) of each text nearest to a point (n,), and their relative distance."""
        at = torch.tensor([candidate], device=self.words.device)
        read = self.read(point[None], at)
        with torch.no_grad():
            apart = self.distance(self.fed(read, at), at) / self.far.zero_distance[candidate]
        lengths = self.lengths[candidate].tolist()
        return [ids[:end] for ids, end in zip(read[0], lengths, strict=True)], float(apart)
