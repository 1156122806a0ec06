"""The first block's attention, from cached queries, keys and values of the candidate tokens."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from adversaries.text.dager.first_layers import First
from adversaries.text.dager.row_spaces import Span

SENTENCES = 512
"""Number of sentences that are computed at once."""

ROUNDS = 4
"""Number of iterations of the relaxed problem."""

AGREES = 1e-4
"""Relative tolerance between the attention computed here and that of the model."""


class Attention:
    """Distances of the first attention's outputs from a row space.

    The query, key and value of a token in the first block depend only on the token and its
    position. They are computed once for every candidate, so that a sentence costs its n x n
    attention, about a tenth of the block's projections.
    """

    def __init__(
        self, span: Span, place: Tensor, tables: tuple[Tensor, Tensor, Tensor], causal: bool
    ) -> None:
        self._span, self._place, self._tables, self._causal = span, place, tables, causal

    @classmethod
    def of(cls, first: First, span: Span, tokens: Sequence[Tensor]) -> "Attention | None":
        """None if the model's attention differs, or if the row space is of another layer."""
        heads = first.heads
        if span.layers != first.behind[0] or not heads:
            return None
        counts = [len(one) for one in tokens]
        most, size = max(counts), max(int(one.max()) for one in tokens) + 1
        rows = torch.arange(most, device=first.device)
        ids = torch.stack([one[rows % len(one)] for one in tokens], dim=1)
        projected = first.projected(ids)
        if projected is None or any(one.shape[-1] % heads for one in projected):
            return None
        place = ids.new_full((len(tokens), size), -1)
        starts = [sum(counts[:p]) for p in range(len(tokens))]
        for p, (one, start) in enumerate(zip(tokens, starts, strict=True)):
            place[p, one] = torch.arange(start, start + len(one), device=ids.device)
        q, k, v = (
            torch.stack(torch.cat([value[:c, p] for p, c in enumerate(counts)]).chunk(heads, 1), 1)
            for value in projected
        )
        if not q.shape == k.shape == v.shape:
            return None
        made = cls(span, place, (q, k, v), first.causal)
        # Tokens differ between positions, since the attention over equal tokens does not depend
        # on queries and keys.
        mixed = [one[(rows[:2] + p) % len(one)] for p, one in enumerate(tokens)]
        some = torch.stack(mixed, dim=1)
        theirs = first.entering(span.layers[0], some)
        ours = made._contexts(some, last=False)
        if ours.shape != theirs.shape:
            return None
        apart = ours - theirs
        agrees = float(apart.abs().max()) <= AGREES * float(theirs.abs().max())
        return made if agrees else None

    def _contexts(self, ids: Tensor, *, last: bool) -> Tensor:
        """Outputs (R, n, d) for sentences (R, n); with `last`, (R, 1, d) for their last tokens."""
        at = self._place[torch.arange(ids.shape[1], device=ids.device), ids]
        q, k, v = self._tables
        asked = q[at[:, -1:] if last else at]
        mixed = functional.scaled_dot_product_attention(
            asked.transpose(1, 2),
            k[at].transpose(1, 2),
            v[at].transpose(1, 2),
            is_causal=self._causal and not last,
        )
        return mixed.transpose(1, 2).flatten(2)

    @torch.no_grad()
    def off(self, ids: Tensor, *, last: bool = False) -> Tensor:
        """Distances (R, n) for sentences (R, n) of candidates; with `last`, (R, 1)."""
        parts = [
            self._span.off(self._contexts(some, last=last)) for some in torch.split(ids, SENTENCES)
        ]
        return torch.cat(parts)

    @torch.no_grad()
    def relaxed(self, slots: Sequence[Tensor], start: Tensor) -> list[Tensor]:
        """Relax the choice of tokens to weights, by non-negative least squares.

        The output of token i is, for each head, sum_p e_ip v_p / Z_i with Z_i = sum_p e_ip. For
        given Z it is linear in the one-hot choices of tokens. Their relaxation is found such that
        the outputs of tokens that are known for certain lie in the row space. Z is that of the last
        solution, and at first of the sentence `start`.

        Args:
            slots: Candidate tokens (k,) of each position.
            start: Initial sentence, (n,).

        Returns:
            Weights (k,) of each position's candidates.
        """
        from scipy.optimize import nnls

        sizes = [len(one) for one in slots]
        rows = torch.arange(len(slots), device=start.device)
        at = torch.repeat_interleave(rows, torch.tensor(sizes, device=start.device))
        every = torch.cat([self._place[p, one] for p, one in enumerate(slots)])
        q, k, v = (table.double() for table in self._tables)
        z = (torch.cat(list(slots)) == start[at]).double()
        known = every[[sum(sizes[:p]) for p, size in enumerate(sizes) if size == 1]]
        if not len(known):
            return list(torch.split(z, sizes))
        scores = torch.einsum("ihc,phc->iph", q[known], k[every]) * q.shape[-1] ** -0.5
        e = (scores - scores.amax(dim=1, keepdim=True)).exp()
        ones = functional.one_hot(at, len(slots)).double().mT
        basis = self._span.basis.to(start.device)
        for _ in range(ROUNDS):
            share = e / torch.einsum("iph,p->ih", e, z)[:, None]
            made = (share[..., None] * v[every]).flatten(2)
            off = (made - (made @ basis) @ basis.mT).mT.flatten(0, 1)
            scale = len(slots) * made.mean(dim=1).norm(dim=1).mean()
            matrix = torch.cat([off / scale, ones]).cpu().numpy()
            target = np.append(np.zeros(len(off)), np.ones(len(slots)))
            try:
                found, _ = nnls(matrix, target, maxiter=20 * len(z))
            except RuntimeError:  # no convergence: the last solution is used
                break
            z = torch.from_numpy(found).to(z)
        return list(torch.split(z, sizes))
