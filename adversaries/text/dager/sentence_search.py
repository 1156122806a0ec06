"""Sentences out of the tokens that may stand at each position, checked by a second span."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from adversaries.text.dager.first_attention import Attention
from adversaries.text.dager.first_layers import First
from adversaries.text.row_space import Span
from fedsim.adversary import Job
from fedsim.records import Tokens

__all__ = ["AGAIN", "Found", "Search"]

SIDE_BY_SIDE = 4
"""Random starts of one length that are improved together."""

TEMPERATURES = (0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 0, 0, 0, 0)
"""Of the passes over all positions; a sum of squared distances starts at about 1."""

COVERED = 0.2
"""Weight of a token in a start where a sentence found explains it, of others 1."""

AGAIN = 4
"""Times that a text may begin with one token where those are one vector. Many would drown what is
behind them: attention is a mean, and anything fits then."""

WIDEST = 20_000
"""Beginnings of a decoder's sentences that are followed at once, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A sentence: token ids (n,) int64, what is around a text included.

    residual: the greatest distance of its inputs from the span checked, as a share of their norms.
    """

    ids: Tensor
    residual: float


@dataclass(eq=False)
class Search:
    """What all searches share.

    first, span: the model, and the span that inputs of whole sentences are checked against.
    tokens: of each position, the ids that may stand there. threshold: residual up to which a
    sentence is in the span. combinations: sentences of a length up to which all are tried. starts:
    random ones of each length, where they are more. count: sentences there are, if that is known.
    """

    first: First
    span: Span
    tokens: list[Tensor]
    around: Tokens
    threshold: float
    job: Job
    combinations: int
    starts: int
    count: int | None
    found: list[Found] = field(default_factory=list)
    missed: list[Found] = field(default_factory=list)

    def run(self) -> None:
        """Fills `found`, and `missed`: the best of those that are not in the span."""
        self._attention = Attention.of(self.first, self.span, self.tokens)
        if self.first.causal:
            self._extend()
        else:
            self._complete()

    def _off(self, ids: Tensor, *, last: bool = False) -> Tensor:
        """Distances (R, n) of what is made of sentences (R, n); with `last`, the last alone."""
        if self._attention is not None:
            return self._attention.off(ids, last=last)
        return self.first.off(self.span, ids)

    @property
    def _left(self) -> int:
        """Tokens that no sentence found has."""
        return self.span.rank - sum(len(one.ids) for one in self.found)

    @property
    def _done(self) -> bool:
        return self._left <= 0 or (self.count is not None and len(self.found) >= self.count)

    def _keep(self, ids: Tensor, off: Tensor) -> None:
        """Sentences (R, n) with the distances (R, n) of their tokens."""
        worst = off.max(dim=1).values
        for place in worst.argsort().tolist():
            one = Found(ids[place].cpu(), float(worst[place]))
            kept = self.found if one.residual < self.threshold else self.missed
            if not any(torch.equal(one.ids, other.ids) for other in kept):
                kept.append(one)
            if kept is self.missed:
                break

    # --- encoders -------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Every length that the ids after a text allow: all sentences, or descents from starts."""
        slots = {n: self._slots(n) for n in range(1, len(self.tokens) + 1)}
        slots = {n: each for n, each in slots.items() if each}
        large = [n for n, each in slots.items() if prod(map(len, each)) > self.combinations]
        for n in slots.keys() - set(large):
            ids = torch.cartesian_prod(*slots[n]).view(-1, n)
            self._keep(ids, self._off(ids))
        for step in self.job.steps(-(-self.starts // SIDE_BY_SIDE)):
            for n in large:
                if not self._done and n in self._possible(slots):
                    self._keep(*self._improved(slots[n]))
            best = min((one.residual for one in self.missed), default=1.0)
            self.job.progress(step, best if not self.found else self.found[-1].residual)
            if self._done or not large:
                break

    def _possible(self, lengths: Iterable[int]) -> set[int]:
        """Lengths of sentences that can, with others or alone, have all the tokens left."""
        left, fitting = self._left, {n for n in lengths if n <= self._left}
        if self.span.noisy:
            return fitting
        most = left if self.count is None else self.count - len(self.found)
        sums = [{0}]
        while len(sums) < most and sums[-1]:
            sums.append({a + n for a in sums[-1] for n in fitting if a + n < left})
        beside = sums if self.count is None else sums[most - 1 : most]
        # Of texts that occur twice the span tells less than the number of examples does.
        return {n for n in fitting if any(left - n in each for each in beside)} or fitting

    def _slots(self, n: int) -> list[Tensor]:
        """Tokens of each position of a sentence of n, none where there is no such sentence."""
        before, after = self.around.prefix, self.around.suffix
        if n <= len(before) + len(after):
            return []
        slots = list(self.tokens[:n])
        fixed = dict(enumerate(before)) | dict(enumerate(after, n - len(after)))
        for place, token in fixed.items():
            if token not in slots[place]:
                return []
            slots[place] = slots[place].new_tensor([token])
        marks = {*before, *after}
        for place in range(len(before), n - len(after)):
            kept = [i for i, token in enumerate(slots[place].tolist()) if token not in marks]
            slots[place] = slots[place][kept]
        return slots if all(map(len, slots)) else []

    def _improved(self, slots: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Sentences changed token by token: ids (R, n), distances (R, n).

        Where the attention is known, they start at the relaxed choice, and the best token is taken
        position by position. Else they start at random, and a token is drawn by the sum of squared
        distances that the sentence would have, at falling temperatures (Kirkpatrick et al., 1983).
        """
        rng = self.job.rng
        ids = torch.stack([self._draw(p, slot) for p, slot in enumerate(slots)], dim=1)
        heats: tuple[float, ...] = TEMPERATURES
        if self._attention is not None:
            heats = (0, 0, 0, 0)
            weights = [self._attention.relaxed(slots, one) for one in ids]
            ids = torch.stack([
                torch.stack([slot[w.argmax()] for slot, w in zip(slots, each, strict=True)])
                for each in weights
            ])  # fmt: skip
        off = self._off(ids)
        if bool((off.max(dim=1).values < self.threshold).any()):
            return ids, off
        open_ = [p for p, slot in enumerate(slots) if len(slot) > 1]
        unchanged = torch.zeros(len(ids), dtype=torch.int64)
        for heat in heats:
            for place in torch.randperm(len(open_), generator=rng).tolist():
                active = (unchanged < len(open_)).nonzero().flatten()
                if not len(active):
                    return ids, off
                p = open_[place]
                slot = slots[p]
                tried = ids[active].repeat_interleave(len(slot), dim=0)
                tried[:, p] = slot.repeat(len(active))
                apart = self._off(tried)
                total = apart.square().sum(dim=1).view(len(active), -1).double().cpu()
                drawn = total.argmin(dim=1)
                if heat:
                    chances = torch.softmax(-total / heat, dim=1)
                    drawn = torch.multinomial(chances, 1, generator=rng).flatten()
                rows = (drawn + torch.arange(len(active)) * len(slot)).to(ids.device)
                same = (tried[rows, p] == ids[active, p]).cpu()
                settled = same if not heat else torch.zeros_like(same)
                unchanged[active] = torch.where(settled, unchanged[active] + 1, 0)
                ids[active], off[active] = tried[rows], apart[rows]
        return ids, off

    def _draw(self, place: int, slot: Tensor) -> Tensor:
        """Tokens (R,) of one position, those that no sentence found explains first."""
        taken = {int(one.ids[place]) for one in self.found if place < len(one.ids)}
        weights = torch.tensor([COVERED if token in taken else 1.0 for token in slot.tolist()])
        drawn = torch.multinomial(weights, SIDE_BY_SIDE, replacement=True, generator=self.job.rng)
        return slot[drawn.to(slot.device)]

    # --- decoders -------------------------------------------------------------------------------

    def _extend(self) -> None:
        """Sentences that grow by a token at a time, and end where nothing extends them.

        Where one token again and again is one vector, how often a text of nothing else has it is
        not told: it is claimed once.
        """
        alone = list[Found]()
        for ids, residuals in self._grown():
            for one, residual in zip(ids, residuals.tolist(), strict=True):
                told = len(self.vector(one.tolist()))
                kept = self.found if told == len(one) else alone
                kept.append(Found(one[:told].cpu(), residual))
        begun = {int(one.ids[0]) for one in self.found}
        self.found += [one for one in alone if int(one.ids[0]) not in begun]

    def _grown(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Beginnings (R, n) that nothing extends, n growing, and residuals (R,) of the last token.

        What a decoder makes of a token is told by those before it alone.
        """
        first = self.tokens[0]
        fixed = dict(enumerate(self.around.prefix))
        kept = first.new_zeros(1, 0)
        residuals = torch.zeros(1, device=first.device)
        for place in self.job.steps(len(self.tokens)):
            slot = self.tokens[place]
            if place in fixed:
                slot = slot[slot == fixed[place]]
            longer, apart = list[Tensor](), list[Tensor]()
            extended = torch.zeros(len(kept), dtype=torch.bool)
            for start, some in self._parts(kept, len(slot)):
                tried = torch.cat(
                    [some.repeat_interleave(len(slot), dim=0), slot.repeat(len(some))[:, None]],
                    dim=1,
                )
                off = self._off(tried, last=True)[:, -1]
                passed = off < self.threshold
                if place >= AGAIN and not self.first.placed:
                    passed &= (tried != tried[:, :1]).any(dim=1)
                longer.append(tried[passed])
                apart.append(off[passed])
                by = passed.view(len(some), len(slot)).any(dim=1)
                extended[start : start + len(some)] = by.cpu()
                if start:
                    self.job.progress(place, float(off.min()))
            if place > len(fixed):
                yield kept[~extended], residuals[~extended]
            kept, residuals = torch.cat(longer), torch.cat(apart)
            order = residuals.argsort()[:WIDEST]
            kept, residuals = kept[order], residuals[order]
            self.job.progress(place, float(residuals.max()) if len(kept) else 1.0)
            if not len(kept):
                return
        if len(self.tokens) > len(fixed):
            yield kept, residuals

    def _parts(self, kept: Tensor, times: int) -> Iterator[tuple[int, Tensor]]:
        size = max(1, WIDEST // max(times, 1))
        for start in range(0, len(kept), size):
            yield start, kept[start : start + size]

    def vector(self, ids: Sequence[int]) -> tuple[int, ...]:
        """What stands for the vector that a decoder makes of the last token of a beginning.

        Of one token again and again it makes the same each time, unless positions enter with it.
        """
        alike = not self.first.placed and len({*ids}) == 1
        return tuple(ids[:1] if alike else ids)
