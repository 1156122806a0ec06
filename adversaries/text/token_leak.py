"""token-leak: the set of tokens of a batch, from the gradient of the word embeddings."""

import math

import torch
from torch import Tensor

from fedsim import (
    Adversary,
    Job,
    Knowledge,
    Observation,
    Reconstruction,
    Requirement,
    TextSpec,
    VictimModel,
)

FILLED = 0.5
"""Share of nonzero rows above which they are no longer the tokens of the batch."""

SPREAD = 0.1587
"""Quantile of a normal distribution one standard deviation below its median."""

BEYOND = 2.0
"""Standard deviations above the expected maximum of as many normal values."""


class TokenLeak(Adversary):
    """Recovers the set of tokens of all texts of a batch, without model, labels or optimisation.

    A word embedding is used only where its token occurs: its row of dL/dE is the sum of the
    gradients at those positions, and every other row is zero. So the nonzero rows are exactly the
    tokens, for any batch and any number of local steps. Padding has no gradient.

    If most rows are nonzero (noise, or a head tied to the embeddings, whose softmax reaches every
    token), only rows with outlying norms are claimed, possibly none: the logarithm of the norm must
    exceed the expected maximum of V normal values with the median and lower spread of the rows.
    Tokens of rows that a defense removed are missing.

    Each token is claimed once, special tokens included; the gradient does not reveal counts.
    """

    name = "token-leak"
    keywords = (
        "text reconstruction",
        "bag of words",
        "token inference",
        "word embeddings",
        "language model",
    )
    suits = (TextSpec,)
    needs = Knowledge.GRADIENT
    recovers = frozenset({"token_counts"})
    cites = (
        "Melis et al., Exploiting Unintended Feature Leakage in Collaborative Learning, IEEE S&P "
        "2019, section 4.1"
    )
    requirements = (
        Requirement("word_noise", "noise fills the rows of absent tokens", most=0.01),
        Requirement("examples", "a token that many texts hold is claimed once", most=8),
    )

    def cautions(self, model: VictimModel) -> list[str]:
        """Warn of word embeddings that are not trained."""
        words = model.words
        return [] if words is None or words in model.trained else [_not_sent(words)]

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Read the tokens off the gradient.

        Raises:
            ValueError: The gradient of the word embeddings is missing, zero, or not finite.
        """
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
                f"the gradient of '{tokens.embedding}' is zero: the word embeddings were frozen, "
                "or a defense removed their gradient, so that it shows no tokens. dager finds them "
                "from the gradients of the transformer's first layers"
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
    """The norm above which a row is an outlier among positive norms (k,), most of them noise."""
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
