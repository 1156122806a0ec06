"""Search for sentences of candidate tokens whose vectors lie in a later layer's row space."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from adversaries.text.dager.first_attention import Attention
from adversaries.text.dager.first_layers import First
from adversaries.text.dager.row_spaces import Span
from fedsim.adversary import Job
from fedsim.records import Tokens

SIDE_BY_SIDE = 4
"""Number of random starts of one length that are improved together."""

TEMPERATURES = (0.3, 0.15, 0.08, 0.04, 0.02, 0.01, 0, 0, 0, 0)
"""Temperatures of the passes over all positions; the sum of squared distances begins at about 1."""

COVERED = 0.2
"""Weight of a token in a random start if a sentence found already contains it; else 1."""

AGAIN = 4
"""The largest number of equal tokens at the beginning of a text, for models in which they all have
one vector. After many of them every token fits, because attention is a mean."""

FAR = 100.0
"""An extension whose residual is so many times its prefix's may be no extension: if positions are
rotated, the last token fits nearly once more."""

ROUNDED = 1e-6
"""Residual of a true token at least, for that comparison."""

WIDEST = 20_000
"""The largest number of prefixes of a decoder's sentences that are followed."""


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """A sentence that was found.

    Attributes:
        ids: Token ids with special tokens, (n,) int64.
        residual: Largest distance of its vectors from the row space, relative to their norms.
    """

    ids: Tensor
    residual: float


@dataclass(eq=False)
class Search:
    """The search for sentences, for encoders and decoders.

    Attributes:
        first: The first layers of the model.
        span: Row space that the vectors of sentences are tested with.
        tokens: Candidate token ids of each position.
        around: The vocabulary, with the special tokens around a text.
        threshold: Residual below which a sentence lies in the row space.
        job: The attack's job.
        combinations: The largest number of sentences of a length that are all tested.
        starts: Number of random sentences of each length if there are more.
        count: Number of sentences, if it is known.
        found: Sentences in the row space.
        missed: The closest of the others.
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
        """Fill `found` and `missed`."""
        self._attention = Attention.of(self.first, self.span, self.tokens)
        if self.first.causal:
            self._extend()
        else:
            self._complete()

    def _off(self, ids: Tensor, *, last: bool = False) -> Tensor:
        """Distances (R, n) for sentences (R, n); with `last`, (R, 1) for their last tokens."""
        if self._attention is not None:
            return self._attention.off(ids, last=last)
        return self.first.off(self.span, ids)

    @property
    def _left(self) -> int:
        """Number of tokens that the sentences found do not account for."""
        return self.span.rank - sum(len(one.ids) for one in self.found)

    @property
    def _done(self) -> bool:
        return self._left <= 0 or (self.count is not None and len(self.found) >= self.count)

    def _keep(self, ids: Tensor, off: Tensor) -> None:
        """Sort sentences (R, n) by the distances (R, n) of their tokens."""
        worst = off.max(dim=1).values
        for place in worst.argsort().tolist():
            one = Found(ids[place].cpu(), float(worst[place]))
            kept = self.found if one.residual < self.threshold else self.missed
            if not any(torch.equal(one.ids, other.ids) for other in kept):
                kept.append(one)
            if kept is self.missed:
                break

    def _complete(self) -> None:
        """Encoders: test all sentences of each possible length, or improve random ones."""
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
        """Lengths of sentences that, with others or alone, can account for all tokens left."""
        left, fitting = self._left, {n for n in lengths if n <= self._left}
        if self.span.noisy:
            return fitting
        most = left if self.count is None else self.count - len(self.found)
        sums = [{0}]
        while len(sums) < most and sums[-1]:
            sums.append({a + n for a in sums[-1] for n in fitting if a + n < left})
        beside = sums if self.count is None else sums[most - 1 : most]
        # If a text occurs twice, the rank is lower than the number of examples suggests.
        return {n for n in fitting if any(left - n in each for each in beside)} or fitting

    def _slots(self, n: int) -> list[Tensor]:
        """Candidates of each position of a sentence of n tokens; none if it is impossible."""
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
        """Improve sentences token by token.

        With a known attention, they start at the relaxed solution, and the best token is taken at
        each position. Otherwise they start at random, and tokens are drawn by simulated annealing
        on the sum of squared distances (Kirkpatrick et al., 1983).

        Returns:
            Token ids (R, n) and distances (R, n).
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
        """Draw tokens (R,) of a position, with lower weight if a sentence found contains them."""
        taken = {int(one.ids[place]) for one in self.found if place < len(one.ids)}
        weights = torch.tensor([COVERED if token in taken else 1.0 for token in slot.tolist()])
        drawn = torch.multinomial(weights, SIDE_BY_SIDE, replacement=True, generator=self.job.rng)
        return slot[drawn.to(slot.device)]

    def _extend(self) -> None:
        """Decoders: extend sentences by one token at a time until nothing fits.

        If equal tokens all have one vector, the length of a text of a single repeated token is
        unknown, and the token is claimed once.
        """
        alone = list[Found]()
        for ids, residuals in self._grown():
            for one, residual in zip(ids, residuals.tolist(), strict=True):
                length = len(self.vector(one.tolist()))
                kept = self.found if length == len(one) else alone
                kept.append(Found(one[:length].cpu(), residual))
        begun = {int(one.ids[0]) for one in self.found}
        self.found += [one for one in alone if int(one.ids[0]) not in begun]

    def _grown(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Extend prefixes; the vector of a token depends only on the tokens before it.

        Yields:
            Prefixes (R, n) that no token extends, in ascending length n, and the residuals (R,) of
            their last tokens.
        """
        first = self.tokens[0]
        fixed = dict(enumerate(self.around.prefix))
        kept = first.new_zeros(1, 0)
        residuals = torch.zeros(1, device=first.device)
        for place in self.job.steps(len(self.tokens)):
            slot = self.tokens[place]
            if place in fixed:
                slot = slot[slot == fixed[place]]
            if not len(slot):  # noise hides a special token, and no text begins without it
                return
            longer, apart = list[Tensor](), list[Tensor]()
            extended = torch.zeros(len(kept), dtype=torch.bool, device=first.device)
            size = max(1, WIDEST // len(slot))
            for start in range(0, len(kept), size):
                some = kept[start : start + size]
                tried = torch.cat(
                    [some.repeat_interleave(len(slot), dim=0), slot.repeat(len(some))[:, None]],
                    dim=1,
                )
                off = self._off(tried, last=True)[:, -1]
                passed = off < self.threshold
                if place >= AGAIN and not self.first.placed:
                    passed &= (tried != tried[:, :1]).any(dim=1)
                rows = passed.nonzero().flatten()
                longer.append(tried[rows])
                apart.append(off[rows])
                if not self.first.placed:  # an extension that fits far worse leaves the prefix, too
                    own = residuals[start : start + len(some)].clamp(min=ROUNDED)
                    passed &= off < FAR * own.repeat_interleave(len(slot))
                extended[start : start + len(some)] = passed.view(len(some), -1).any(dim=1)
                if start:
                    self.job.progress(place, float(off.min()))
            if place > len(fixed):
                ended = (~extended).nonzero().flatten()
                yield kept[ended], residuals[ended]
            kept, residuals = torch.cat(longer), torch.cat(apart)
            order = residuals.argsort()[:WIDEST]
            kept, residuals = kept[order], residuals[order]
            self.job.progress(place, float(residuals.max()) if len(kept) else 1.0)
            if not len(kept):
                return
        if kept.shape[1] < len(self.tokens):  # the budget ended the search before the texts end
            if kept.shape[1]:
                cut = zip(kept.cpu(), residuals.tolist(), strict=True)
                self.missed += [Found(ids, residual) for ids, residual in cut]
        elif len(self.tokens) > len(fixed):
            yield kept, residuals

    def vector(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A key of the vector of a prefix's last token in a decoder.

        It is the same for any number of equal tokens, unless inputs depend on positions.
        """
        alike = not self.first.placed and len({*ids}) == 1
        return tuple(ids[:1] if alike else ids)
