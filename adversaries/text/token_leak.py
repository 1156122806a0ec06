"""token-leak: which words a batch holds, read off the word embeddings' gradient."""

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedsim.adversary import Adversary, Job
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.spec import TextSpec
from fedsim.victim import VictimModel

__all__ = ["TokenLeak"]

FILLED = 0.5
"""Share of rows that are not zero from which on they are no list of tokens."""

SPREAD = 0.1587
"""Quantile of a normal distribution a standard deviation below its median."""

BEYOND = 2.0
"""Standard deviations above the greatest of so many that chance would bring."""


class TokenLeak(Adversary):
    """The set of tokens of all texts together; no model, no labels, no computing.

    A word embedding is used where its word occurs and nowhere else: its row of dL/dE is the sum of
    what came back to those places, and every other row is zero. So the rows that are not zero are
    the words, exactly, for any batch and after any number of local steps. Padding has none.

    Where most rows are not zero (noise, or a head tied to the embeddings, whose softmax reaches
    every word), the rows whose norms stand out are claimed: those whose logarithm is as far above
    the median as chance brings no row of V of a normal distribution with the spread below it. It
    may be none. Where a defense dropped rows, the words of those are missing.

    Claims each token once, those around a text included: how often one occurs is not told.
    """

    name: ClassVar[str] = "token-leak"
    keywords = (
        "text reconstruction",
        "bag of words",
        "token inference",
        "word embeddings",
        "language model",
    )
    suits = (TextSpec,)
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"token_counts"})
    cites: ClassVar[str] = (
        "Melis et al., Exploiting Unintended Feature Leakage in Collaborative Learning, IEEE S&P "
        "2019, section 4.1"
    )

    def cautions(self, model: VictimModel) -> list[str]:
        """Word embeddings that are not trained."""
        words = model.words
        return [] if words is None or words in model.trained else [_not_sent(words)]

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Look; raises `ValueError` where no gradient of word embeddings was sent, or zeros."""
        gradient, tokens = seen.know(Knowledge.GRADIENT), seen.spec.require(TextSpec).tokens
        rows = gradient.get(tokens.embedding)
        if rows is None:
            raise ValueError(_not_sent(tokens.embedding))
        norms = rows.double().norm(dim=1).cpu()
        if not torch.isfinite(norms).all():
            raise ValueError(f"the gradient of '{tokens.embedding}' holds NaN or Inf")
        found = norms > 0
        if not found.any():
            raise ValueError(
                f"the gradient of '{tokens.embedding}' is zero throughout: the word embeddings "
                "were frozen, or their gradient removed by a defense, so that it tells nothing of "
                "the tokens. dager reads them from the spans of the transformer's own layers"
            )
        filled = float(found.double().mean())
        bound = 0.0
        if filled > FILLED:
            bound = _standing_out(norms[found])
            found = norms > bound
        ids = found.nonzero().flatten().tolist()
        below = norms[~found].max() if not found.all() else norms.new_zeros(())
        return Reconstruction(
            token_counts=dict.fromkeys(ids, 1),
            diagnostics={
                "rows_filled": filled,
                "bound": bound,
                "gap": float(norms[found].min() / below) if ids and float(below) else math.inf,
                "exact": filled <= FILLED,
            },
        )


def _standing_out(norms: Tensor) -> float:
    """The norm above which chance brings no row; of norms (k,) above 0, most of them of no word."""
    logs = norms.log()
    spread = float(logs.median() - logs.quantile(SPREAD))
    beyond = math.sqrt(2 * math.log(len(logs))) + BEYOND
    return math.exp(float(logs.median()) + beyond * spread)


def _not_sent(name: str) -> str:
    return (
        f"the update holds no '{name}': the word embeddings were not trained, or not sent. "
        'token-leak needs task.parameters = "all"; without them, dager reads tokens from the spans '
        "of the transformer's own layers"
    )
