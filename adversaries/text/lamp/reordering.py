"""LAMP's discrete steps: the order of the tokens, by gradient and language prior together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from adversaries.text.dummy_texts import DummyTexts
from fedsim.priors import LanguagePrior

__all__ = ["Reordering", "moved"]


def moved(order: list[int], rng: torch.Generator) -> list[int]:
    """One of LAMP's four transformations at random (section 4.3), of a list that is not changed.

    Two elements are swapped; one is moved; a subsequence is; or a prefix is put behind the rest.
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
    """Puts the tokens of dummy texts into another order where that is likelier.

    Of `candidates` reorderings of each text of a row, and the order it has, it takes the one with
    the lowest distance plus `weight` times the mean negative log-likelihood a token that the prior
    gives the nearest tokens (Algorithm 1, lines 7 to 18). Where the tokens it ends with have the
    gradient that was observed, their own embeddings become the point.
    """

    def __init__(
        self, texts: DummyTexts, prior: LanguagePrior | None, *, candidates: int, weight: float
    ) -> None:
        self.texts, self.prior = texts, prior
        self.candidates, self.weight = candidates, weight

    def __call__(self, points: Tensor, which: Tensor, rngs: Sequence[torch.Generator]) -> Tensor:
        """Points (R, n) of which (R,), each by its own generator."""
        ids = self.texts.read(points, which)
        found = points.clone()
        for row, rng in enumerate(rngs):
            for text in range(ids.shape[1]):
                self._reorder(found[row], ids[row], which[row : row + 1], text, rng)
        exact = self.texts.fed(ids, which)
        done = self.texts.distance(exact, which) < self.texts.matched[which]
        return torch.where(done[:, None], exact, found)

    def repeated(self, point: Tensor, candidate: int, rng: torch.Generator, rounds: int) -> Tensor:
        """One point (n,) after so many rounds, or until its tokens have the observed gradient."""
        points, at = point[None], torch.tensor([candidate], device=point.device)
        for _ in range(rounds):
            points = self(points, at, [rng])
            if bool(self.texts.distance(points, at) < self.texts.matched[at]):
                break
        return points[0]

    def _reorder(
        self, point: Tensor, ids: Tensor, candidate: Tensor, text: int, rng: torch.Generator
    ) -> None:
        """In place: the point (n,) and the tokens (B, L) of one text of one row."""
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
        """Which of the orders (K, L) of a text has the lowest distance plus cost (K,).

        No distance is below 0, so that orders whose cost alone exceeds a total need none.
        """
        texts, ranks = self.texts, costs.argsort(stable=True)
        totals = torch.full_like(costs, torch.inf)
        for some in torch.split(ranks, texts.far.together(batch)):
            if float(costs[some[0]]) > float(totals.min()):
                break
            every = batch.repeat(len(some), 1, 1, 1)
            every[:, text] = batch[text][index[some].to(batch.device)]
            rows = candidate.expand(len(some))
            with torch.no_grad():
                apart = texts.distance(every.flatten(1), rows)
            totals[some] = apart.to(costs) + costs[some]
        return int(totals.argmin())
