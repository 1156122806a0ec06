"""LAMP's discrete steps: reordering of tokens by gradient distance and language prior."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversaries.text.dummy_texts import DummyTexts
from fedsim.priors import LanguagePrior

FEW = 8
"""Orders in one pass on a CPU: larger passes are hardly faster, and evaluate more in vain."""


def moved(order: list[int], rng: torch.Generator) -> list[int]:
    """Apply one of LAMP's four random transformations (section 4.3) to a copy of a list.

    Two elements are swapped, one element is moved, a subsequence is moved, or a prefix is moved to
    the end.
    """

    def draw(limit: int) -> int:
        return int(torch.randint(limit, (), generator=rng))

    size, kind = len(order), draw(4)
    order = list(order)
    if kind == 0:
        i, j = draw(size), draw(size)
        order[i], order[j] = order[j], order[i]
    elif kind == 1:
        element = order.pop(draw(size))
        order.insert(draw(size), element)
    elif kind == 2:
        begin = draw(size)
        stop = begin + 1 + draw(size - begin)
        part, rest = order[begin:stop], order[:begin] + order[stop:]
        place = draw(len(rest) + 1)
        order = rest[:place] + part + rest[place:]
    else:
        cut = draw(size)
        order = order[cut:] + order[:cut]
    return order


class Reordering:
    """Discrete step of LAMP: the best of several orders of each dummy text.

    Among `candidates` reorderings of a text and its present order, the step takes the one with the
    lowest sum of gradient distance and `weight` times the prior's mean negative log-likelihood per
    token of the nearest tokens (Algorithm 1, lines 7 to 18). If the resulting tokens have the
    observed gradient, their own embeddings replace the point.

    Args:
        texts: The objective.
        prior: The language prior; None for none.
        candidates: Number of reorderings.
        weight: Weight of the prior.
    """

    def __init__(
        self, texts: DummyTexts, prior: LanguagePrior | None, *, candidates: int, weight: float
    ) -> None:
        self.texts, self.prior = texts, prior
        self.candidates, self.weight = candidates, weight

    def __call__(self, points: Tensor, which: Tensor, rngs: Sequence[torch.Generator]) -> Tensor:
        """Reorder points (R, n) of candidates `which` (R,) int64, each with its own generator."""
        ids = self.texts.read(points, which)
        found = points.clone()
        for row, rng in enumerate(rngs):
            for text in range(ids.shape[1]):
                self._reorder(found[row], ids[row], which[row : row + 1], text, rng)
        exact = self.texts.fed(ids, which)
        done = self.texts.distance(exact, which) < self.texts.matched[which]
        return torch.where(done[:, None], exact, found)

    def repeated(self, point: Tensor, candidate: int, rng: torch.Generator, rounds: int) -> Tensor:
        """Reorder one point (n,) `rounds` times, or until it has the observed gradient."""
        points, at = point[None], torch.tensor([candidate], device=point.device)
        for _ in range(rounds):
            points = self(points, at, [rng])
            if bool(self.texts.distance(points, at) < self.texts.matched[at]):
                break
        return points[0]

    def _reorder(
        self, point: Tensor, ids: Tensor, candidate: Tensor, text: int, rng: torch.Generator
    ) -> None:
        """Reorder one text in place, in a point (n,) and its tokens (B, L)."""
        texts, at = self.texts, int(candidate)
        places = texts.sought[at, text].nonzero().flatten()
        if len(places) < 2:
            return
        inner = list(range(len(places)))
        drawn = [tuple(moved(inner, rng)) for _ in range(self.candidates)]
        orders = torch.tensor(list(dict.fromkeys([tuple(inner), *drawn])))
        index = torch.arange(ids.shape[1]).repeat(len(orders), 1)
        index[:, places] = places[orders]
        surprise = torch.zeros(len(orders))
        if self.prior is not None and self.weight:
            lengths = texts.lengths[at, text].expand(len(orders))
            surprise = self.prior.surprise(ids[text][index], lengths)
        batch = point.view(texts.shape)
        costs = (self.weight * surprise / len(ids)).to(point.dtype)
        best = self._lowest(batch, text, index, costs, candidate)
        batch[text] = batch[text][index[best].to(point.device)]
        ids[text] = ids[text][index[best]]

    def _lowest(
        self, batch: Tensor, text: int, index: Tensor, costs: Tensor, candidate: Tensor
    ) -> int:
        """The index of the order (K, L) of a text with the lowest distance plus cost (K,).

        Distances are not negative, so orders whose cost alone exceeds a total are not evaluated.
        """
        texts, ranks = self.texts, costs.argsort(stable=True)
        totals, rows_at_once = torch.full_like(costs, torch.inf), texts.far.together(batch)
        if batch.device.type == "cpu":
            rows_at_once = min(rows_at_once, FEW)
        for some in torch.split(ranks, rows_at_once):
            if float(costs[some[0]]) > float(totals.min()):
                break
            every = batch.repeat(len(some), 1, 1, 1)
            every[:, text] = batch[text][index[some].to(batch.device)]
            rows = candidate.expand(len(some))
            with torch.no_grad():
                apart = texts.distance(every.flatten(1), rows)
            totals[some] = apart.to(costs) + costs[some]
        return int(totals.argmin())
