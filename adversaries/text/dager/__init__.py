"""dager: whole batches of text, exactly, from the spans of two layers' gradients."""

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from adversaries.text.dager.first_layers import First
from adversaries.text.dager.sentence_search import AGAIN, Found, Search
from adversaries.text.dager.token_candidates import candidates
from adversaries.text.row_space import Span, spanned
from fedsim.adversary import Adversary, Job
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction, Tokens
from fedsim.spec import TextSpec

__all__ = ["DAGER"]

NOISE = 3.0
"""How many times the distance that tokens have from the first span, sentences may have from the
later one: both hold what rounding, noise or local steps do."""


class DAGER(Adversary):
    """The texts of a batch, token by token: only they fit what the gradient spans.

    The gradient of a linear layer is sum_i delta_i x_i', so that the b vectors that entered it span
    its row space; of d dimensions that leaves d - b to tell by. What enters the first block's
    query, key and value projections is known for every token at every position, and those that lie
    in the span are kept. What enters a later layer depends on a sentence as a whole: sentences of
    the tokens kept are run through the first block, and those whose vectors lie in the later
    layer's span are claimed. Nothing is optimised but that choice; neither labels nor lengths nor
    the number of texts is needed, and their padding is nowhere in the gradient.

    Encoders: all sentences of a length are tried where they are few, else random ones improved a
    token at a time, until those found have as many tokens as the span has dimensions. Decoders:
    sentences grow by a token at a time, and end where none fits.

    The later layer is the first behind the attention (`check` "first-block"), whose inputs no
    feed-forward layer has to be computed for, or as in the paper the next block's projections,
    which span less where that block is the last and feeds one token alone to the head.

    Exact while b < d, for one step and no noise. Of several steps' gradient, or a noisy one, the
    leading directions stand for the span; tokens and sentences that stand out are claimed.
    """

    name: ClassVar[str] = "dager"
    keywords = (
        "gradient inversion",
        "text reconstruction",
        "exact recovery",
        "low rank",
        "language model",
        "transformer",
    )
    suits = (TextSpec,)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL
    recovers: ClassVar[frozenset[str]] = frozenset({"tokens", "text"})
    cites: ClassVar[str] = (
        "Petrov et al., DAGER: Exact Gradient Inversion for Large Language Models, NeurIPS 2024"
    )

    tolerance: float = Field(default=1e-4, gt=0, lt=1)
    """Share of its norm that a token's embedding may have off the first span; raised while too
    few pass; with noise, what stands out among all tokens counts as well."""

    threshold: float = Field(default=3e-3, gt=0, lt=1)
    """The same for what a sentence makes of it, off the later span."""

    check: Literal["first-block", "second-block"] = "first-block"
    """The later span: of the first layer behind the attention, or "second-block": of the next
    query projection, as in the paper."""

    combinations: int = Field(default=1024, ge=1)
    """Sentences of a length up to which an encoder's are all tried."""

    starts: int = Field(default=200, ge=0)
    """Random sentences of each length, where they are more."""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Search; raises `ValueError` where the gradient spans everything, or is another kind's."""
        model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
        tokens, words = seen.spec.require(TextSpec).tokens, model.embedding
        if words is None:
            raise ValueError("the task names no word embeddings of its model")
        gradient = {name: value.to(job.device) for name, value in gradient.items()}
        first = First(model, gradient, job.device)
        turned = first.turned[first.queries[0]]
        span = spanned(first.queries, gradient, turned)
        if span is None:
            raise ValueError(_full(first, first.queries, gradient, seen))
        # Of a decoder that rotates positions the first span tells no number of tokens.
        later = self._later(first, gradient, span.rank if first.placed else span.width)
        if later is None:
            raise ValueError(_full(first, first.behind[0], gradient, seen))
        if first.placed and later.rank > span.rank and not (span.noisy or later.noisy):
            # Of models that attend alike everywhere the first span's last directions are as small
            # as rounding; those behind it tell how many there are.
            span = spanned(first.queries, gradient, turned, rank=later.rank) or span
        for one in (span, later):
            if not one.rank:
                raise ValueError(
                    f"no direction of the gradient of '{one.layers[0]}' stands out above its "
                    "noise: there is nothing to tell tokens by. Less noise against the gradient, "
                    "or a smaller batch, leaks"
                )
        words = words.to(job.device)
        longest = min(tokens.longest, later.rank + (0 if first.placed else AGAIN))
        allowed = _allowed(tokens).to(job.device)
        kept = candidates(first, span, words, allowed, longest, self.tolerance)
        threshold = self.threshold
        if kept.residuals:
            threshold = max(threshold, NOISE * max(kept.residuals))
        search = Search(
            first=first,
            span=later,
            tokens=kept.tokens,
            around=tokens,
            threshold=threshold,
            job=job,
            combinations=self.combinations,
            starts=self.starts,
            count=seen.num_examples,
        )
        if kept.tokens:
            search.run()
        claimed = _chosen(search, later, seen.num_examples)
        ids = [one.ids for one in claimed]
        return Reconstruction(
            tokens=ids,
            text=[tokens.spell(one.tolist()) for one in ids],
            trace=tuple(job.trace),
            diagnostics={
                "layers": [*span.layers, *later.layers],
                "dimensions": span.width,
                "rank": span.rank,
                "rank_later": later.rank,
                "noisy": span.noisy or later.noisy,
                "candidates": kept.counts,
                "token_residual": max(kept.residuals, default=1.0),
                "threshold": threshold,
                "residuals": [one.residual for one in claimed],
                "verified": [one.residual < threshold for one in claimed],
                "tokens_found": sum(map(len, ids)),
                "exact_gradient": seen.exact,
            },
        )

    def _later(self, first: First, gradient: dict[str, Tensor], least: int) -> Span | None:
        """The span to check sentences by, of `least` dimensions where a layer has them.

        Layers behind which one token alone goes on to the head span less.
        """
        best: Span | None = None
        for layers in first.behind if self.check == "first-block" else first.behind[::-1]:
            span = spanned(layers, gradient, first.turned[layers[0]])
            if span is not None and (best is None or span.rank > best.rank):
                best = span
            if best is not None and (best.noisy or best.rank >= least):
                break
        return best


def _full(
    first: First, layers: tuple[str, ...], gradient: dict[str, Tensor], seen: Observation
) -> str:
    """The error message for a gradient that spans all dimensions, with the likely reason."""
    # The width of the layer, since some models (ALBERT) project narrower word embeddings.
    width = gradient[f"{layers[0]}.weight"].shape[0 if first.turned[layers[0]] else 1]
    most = math.inf
    if seen.lengths is not None:
        most = sum(map(int, seen.lengths))
    elif seen.num_examples is not None:
        most = seen.num_examples * seen.spec.require(TextSpec).tokens.longest
    why = "noise, rounding to 16 bits or a mask fills it"
    if most < width:
        why = f"{most} tokens at most are behind it, and {why}"
    elif seen.lengths is not None:
        why = f"{most} tokens are behind it"
    else:
        why = f"at least {width} tokens may be behind it, or {why}"
    return (
        f"the gradient of '{layers[0]}' spans all d = {width} dimensions: {why}. dager needs fewer "
        "tokens than dimensions, and in a noisy gradient fewer than half as many: use smaller "
        "batches, shorter texts, a wider model or less noise"
    )


def _allowed(tokens: Tokens) -> Tensor:
    """(V,) bool: what may be in a batch. Padding may not, nor marks that no text is framed by."""
    inside = {tokens.special[role] for role in ("unk", "mask") if role in tokens.special}
    never = set(tokens.marks) - inside - {*tokens.prefix, *tokens.suffix}
    allowed = torch.ones(len(tokens.pieces), dtype=torch.bool)
    allowed[sorted(never)] = False
    return allowed


def _chosen(search: Search, span: Span, count: int | None) -> list[Found]:
    """What was found, and what comes nearest for what is missing, as far as tokens are left.

    Nothing is missing once beginnings, of which a decoder makes a vector each, are as many as the
    span has dimensions: what is further off fits by chance.
    """
    claimed = list[Found]()
    begun = set[tuple[int, ...]]()
    for one in sorted(search.found, key=lambda one: one.residual)[:count]:
        if len(begun) >= span.rank and not span.noisy:
            break
        claimed.append(one)
        ids = one.ids.tolist()
        begun |= {search.vector(ids[:end]) for end in range(1, len(ids) + 1)}
    left = span.rank - sum(len(one.ids) for one in claimed)
    for one in sorted(search.missed, key=lambda one: one.residual):
        if len(claimed) < (count or 1) and len(one.ids) <= left:
            claimed.append(one)
            left -= len(one.ids)
    return claimed
