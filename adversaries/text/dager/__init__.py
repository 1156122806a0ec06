"""dager: exact recovery of batches of text from the row spaces of two layers' gradients."""

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from adversaries.text.dager.first_layers import First, no_queries, queries_among
from adversaries.text.dager.row_spaces import Span, spanned
from adversaries.text.dager.sentence_search import AGAIN, Found, Search
from adversaries.text.dager.token_candidates import candidates
from fedsim import Adversary, Job, Knowledge, Requirement, TextSpec, VictimModel
from fedsim.errors import DataError
from fedsim.records import Observation, Reconstruction, Tokens

NOISE = 3.0
"""Factor between the distance of tokens from the first row space and the threshold for sentences in
the later one; rounding, noise and local steps affect both alike."""

APART = 0.1
"""Largest threshold for sentences where weights were sent: wrong ones are 0.15 apart or more."""


class DAGER(Adversary):
    """Recovers the texts of a batch by testing which tokens lie in the row space of the gradient.

    The gradient of a linear layer is sum_i delta_i x_i', so its b inputs span its row space, and
    the other d - b of d dimensions allow a test. The inputs of the first block's query, key and
    value projections are known for every token at every position, and tokens in the row space are
    kept. The inputs of a later layer depend on a whole sentence: sentences of kept tokens are run
    through the first block, and those whose vectors lie in the later layer's row space are claimed.
    Only this choice is searched. Labels, lengths and the number of texts are not needed, and
    padding has no gradient.

    Encoders: all sentences of a length are tested if they are few. Otherwise random ones are
    improved token by token, until the sentences found have as many tokens as the row space has
    dimensions. Decoders: sentences are extended by one token at a time, and end where none fits.

    The later layer is the first one behind the attention (`check` "first-block"), which needs no
    feed-forward layer, or as in the paper the next block's projections. The latter have fewer
    dimensions if that block is the last one and passes a single token to the head.

    Recovery is exact while b < d, for one local step without noise. For several local steps, or
    under noise, the leading singular directions replace the row space, and tokens and sentences
    with outlying distances are claimed. If weights were sent (`Observation.divisor`), the errors of
    their rounding are known: directions below them are left out, and a token may be as far from the
    others as these errors move its input.
    """

    name = "dager"
    keywords = ("text reconstruction", "exact recovery", "low rank", "transformer")
    suits = (TextSpec,)
    needs = Knowledge.GRADIENT | Knowledge.MODEL
    recovers = frozenset({"tokens", "text"})
    cites = "Petrov et al., DAGER: Exact Gradient Inversion for Large Language Models, NeurIPS 2024"
    requirements = (
        Requirement("first_fill", "tokens outside the row space are ruled out", most=0.75),
        Requirement("missing_rank", "tokens that the rank lacks are not found", most=0.2),
        Requirement("steps", "the row space is that of one step", most=1),
        Requirement("optimizer", "other optimizers change the row space", only=("sgd",)),
        Requirement("first_zeros", "coordinates that are left out fill the row space", most=0.1),
        Requirement("imbalance", "noise fills the row space", most=0.02),
        Requirement("dropout", "masks change the inputs of a layer", most=0),
    )

    tolerance: float = Field(default=1e-4, gt=0, lt=1)
    """Largest distance of a token's embedding from the first row space, relative to its norm. It is
    raised while too few tokens pass; under noise, tokens with outlying distances pass as well."""

    threshold: float = Field(default=3e-3, gt=0, lt=1)
    """Largest distance of a sentence's vectors from the later row space, relative to their
    norms."""

    check: Literal["first-block", "second-block"] = "first-block"
    """Layer of the later row space: the first one behind the attention ("first-block"), or the
    query projection of the next block ("second-block"), as in the paper."""

    combinations: int = Field(default=1024, ge=1)
    """The largest number of sentences of a length that are all tested, for encoders."""

    starts: int = Field(default=200, ge=0)
    """Number of random sentences of each length if there are more, for encoders."""

    def cautions(self, model: VictimModel) -> list[str]:
        """No warnings.

        Raises:
            DataError: The model has no query projections of a known name.
        """
        layers = [
            name
            for name, layer in model.module.named_modules()
            if f"{name}.weight" in model.trained
            and not isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        ]
        if not queries_among(layers):
            raise DataError(f"dager: {no_queries(layers)}")
        return super().cautions(model)

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Search the texts.

        Raises:
            ValueError: The gradient spans all dimensions, is zero, or is of an unknown model.
        """
        model, gradient = seen.know(Knowledge.MODEL), seen.know(Knowledge.GRADIENT)
        tokens, words = seen.spec.require(TextSpec).tokens, model.embedding
        if words is None:
            raise ValueError("the task names no word embeddings of its model")
        gradient = {name: value.to(job.device) for name, value in gradient.items()}
        first = First(model, gradient, job.device)
        turned = first.turned[first.queries[0]]
        errors = {} if seen.divisor is None else first.errors(gradient, seen.divisor)
        span = spanned(first.queries, gradient, turned, errors=errors)
        if span is None:
            raise ValueError(_full(first, first.queries, gradient, seen))
        if not first.behind:
            raise ValueError(
                f"the gradient has {', '.join(first.queries)} and no layer behind them, and "
                "sentences are tested with such a layer: the attack needs its gradient, too"
            )
        # If a decoder rotates positions, the first row space does not give the number of tokens.
        least = span.rank if first.placed else span.width
        later = self._later(first, gradient, errors, least)
        if later is None:
            raise ValueError(_full(first, first.behind[0], gradient, seen))
        exact = not errors and not span.noisy and not later.noisy
        if first.alone and exact and later.rank < span.rank:
            raise ValueError(
                "the model has one block, behind whose attention only the tokens that the head "
                f"reads have a gradient ({later.rank} of {span.rank}), and sentences are tested "
                "there. The attack needs a model of two blocks or more"
            )
        if first.placed and later.rank > span.rank and exact:
            # If a model attends to all tokens alike, the last directions of the first row space
            # are as small as rounding; the later layer then gives the rank.
            span = spanned(first.queries, gradient, turned, rank=later.rank) or span
        for one in (span, later):
            if not one.rank:
                raise ValueError(
                    f"no singular value of the gradient of '{one.layers[0]}' exceeds its noise, so "
                    "that no token can be found. The attack needs less noise relative to the "
                    "gradient, or a smaller batch"
                )
        words = words.to(job.device)
        longest = min(tokens.longest, later.rank + (0 if first.placed else AGAIN))
        allowed = _allowed(tokens).to(job.device)
        kept = candidates(first, span, words, allowed, longest, self.tolerance)
        threshold = self.threshold
        if kept.residuals:
            threshold = max(threshold, NOISE * max(kept.residuals))
        if span.blur is not None:
            threshold = max(self.threshold, min(threshold, APART))
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
                "candidates": [len(one) for one in kept.tokens],
                "token_residual": max(kept.residuals, default=1.0),
                "threshold": threshold,
                "residuals": [one.residual for one in claimed],
                "verified": [any(one is each for each in search.found) for one in claimed],
                "tokens_found": sum(map(len, ids)),
                "exact_gradient": seen.exact,
            },
        )

    def _later(
        self, first: First, gradient: dict[str, Tensor], errors: dict[str, Tensor], least: int
    ) -> Span | None:
        """The row space to test sentences with, of at least `least` dimensions if possible.

        Layers behind which a single token is passed to the head have fewer dimensions.
        """
        best: Span | None = None
        # Whatever mixture of tokens a single head makes, it lies in the span of their values.
        behind = first.behind[1:] if first.heads == 1 and len(first.behind) > 1 else first.behind
        for layers in behind if self.check == "first-block" else behind[::-1]:
            span = spanned(layers, gradient, first.turned[layers[0]], errors=errors)
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
    """Tokens that a batch may hold, (V,) bool: no padding, and no unused special tokens."""
    inside = {tokens.special[role] for role in ("unk", "mask") if role in tokens.special}
    never = set(tokens.marks) - inside - {*tokens.prefix, *tokens.suffix}
    allowed = torch.ones(len(tokens.pieces), dtype=torch.bool)
    allowed[sorted(never)] = False
    return allowed


def _chosen(search: Search, span: Span, count: int | None) -> list[Found]:
    """The sentences found, and the closest others for those that are missing.

    No sentence is missing once the prefixes of those found, each of which has a vector of its own
    in a decoder, are as many as the row space has dimensions. Further ones fit by chance.
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
