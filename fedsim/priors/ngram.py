"""An n-gram language model of the victim's tokens, fitted to public texts in seconds."""

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import DataError
from fedsim.priors.prior import LanguagePrior, counted, sentences
from fedsim.records import Tokens

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LEAST = 0.05
"""Smallest discount of a count, so that unseen n-grams have a probability above 0."""


class _Level:
    """The n-grams of one order.

    Args:
        keys: Sorted keys (G,). The key of an n-gram is the index of its first n - 1 tokens in the
            order below, times V + 1, plus its last token.
        count: Counts (G,).
        context: Index of each n-gram's context in the order below, (G,).
        contexts: Number of n-grams in the order below.

    Attributes:
        keys: Sorted keys.
        values: (count - discount) / count of the context, for each n-gram.
        backoff: Weight of the order below, by the index of the context; 1 for an unseen one.
    """

    def __init__(self, keys: Ints, count: Ints, context: Ints, contexts: int) -> None:
        off = _discounts(count)[np.minimum(count, 3)]
        total = np.bincount(context, weights=count, minlength=contexts)
        taken = np.bincount(context, weights=off, minlength=contexts)
        seen = np.maximum(total, 1)
        self.keys, self.values = keys, (count - off) / seen[context]
        self.backoff = np.where(total > 0, taken / seen, 1.0)

    def places(self, wanted: Ints) -> Ints:
        """Indices of n-grams by their keys; -1 for unseen ones and negative keys."""
        found = np.searchsorted(self.keys, wanted)
        found[found == len(self.keys)] = 0
        return np.where(self.keys[found] == wanted, found, -1)


class NGramPrior(LanguagePrior):
    """Interpolated n-grams with modified Kneser-Ney smoothing (Chen and Goodman, 1999, eq. 22-27).

    The highest order counts how often an n-gram occurs; lower orders count its contexts, or how
    often it begins a text. Single tokens are interpolated with the uniform distribution.
    """

    def __init__(
        self, levels: tuple[_Level, ...], vocabulary: int, *, framed: bool, description: str
    ) -> None:
        self._levels, self._vocabulary, self._framed = levels, vocabulary, framed
        self.description = description

    @classmethod
    def fit(cls, texts: Iterable[str], tokens: Tokens, order: int = 3) -> Self:
        """Fit a model to public texts.

        Args:
            texts: Public texts; long ones are split into sentences.
            tokens: The victim's tokens.
            order: Length of the longest n-grams.

        Raises:
            DataError: There is no text.
        """
        if order < 1:
            raise ValueError(f"order = {order}; expected 1 or more")
        framed, size = bool(tokens.prefix), len(tokens.pieces)
        # If no token begins every text, an id outside the vocabulary does.
        start = [] if framed else [size]
        rows = [np.array([*start, *ids], dtype=np.int64) for ids in sentences(texts, tokens)]
        if not rows:
            raise DataError(
                "an n-gram prior is fitted to public texts, and there are none with a word that "
                'the tokenizer knows. Grant PRIOR and set task.public, or set prior to "FOLDER" '
                'or "hub:NAME", a causal language model'
            )
        ids = np.concatenate(rows)
        at = np.concatenate([np.arange(len(row)) for row in rows])
        levels = _fitted(ids, at, order, size)
        said = f"{order}-gram model of {len(rows)} public sentences, {len(ids)} tokens"
        return cls(levels, size, framed=framed, description=said)

    def surprise(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the mean negative log-likelihood per token, as in the base class."""
        rows, sizes = counted(ids, lengths, self._vocabulary)
        start = torch.full((len(rows), 0 if self._framed else 1), self._vocabulary)
        likely = np.log(self._likelihoods(torch.cat([start, rows], dim=1).numpy()))
        sizes = sizes + start.shape[1]
        inside = np.arange(1, likely.shape[1] + 1) < sizes.numpy()[:, None]
        total = -(likely * inside).sum(axis=1) / np.maximum(inside.sum(axis=1), 1)
        return torch.from_numpy(total).float().to(ids.device)

    def _likelihoods(self, ids: Ints) -> Floats:
        """Compute the probabilities (R, L - 1) of all tokens of ids (R, L) but the first."""
        lowest = self._levels[0]
        found: Floats = lowest.values[ids[:, 1:]] + lowest.backoff[0] / self._vocabulary
        context = ids[:, :-1]
        for n, level in enumerate(self._levels[1:], start=1):
            keys = np.where(context < 0, -1, context * (self._vocabulary + 1) + ids[:, n:])
            # Candidates are permutations, and most of their n-grams are equal.
            wanted, inverse = np.unique(keys, return_inverse=True)
            places = level.places(wanted)[inverse].reshape(keys.shape)
            part = found[:, n - 1 :]
            part *= np.where(context < 0, 1.0, level.backoff[context])
            part += np.where(places < 0, 0.0, level.values[places])
            context = places[:, :-1]
        return found


def _fitted(ids: Ints, at: Ints, order: int, size: int) -> tuple[_Level, ...]:
    """Fit the levels to the N tokens of all texts, one text after the other.

    Args:
        ids: Token ids (N,).
        at: Position of each token in its text, (N,).
        order: Length of the longest n-grams.
        size: Size of the vocabulary.
    """
    base = size + 1
    keys: list[Ints] = [np.arange(base)]
    times: list[Ints] = [np.bincount(ids, minlength=base)]
    # Index of the n-gram that ends at each token; -1 if the text is too short for one.
    place = ids
    begin: list[Ints] = [np.bincount(ids[at == 0], minlength=base)]
    contexts: list[Ints] = [np.zeros(base, dtype=np.int64)]
    suffixes: list[Ints] = []
    for n in range(2, order + 1):
        whole = np.flatnonzero(at >= n - 1)
        joined = place[whole - 1] * base + ids[whole]
        known, inverse, many = np.unique(joined, return_inverse=True, return_counts=True)
        # The last n - 1 tokens are those of any occurrence of the n-gram.
        suffix = np.empty(len(known), dtype=np.int64)
        suffix[inverse] = place[whole]
        suffixes.append(suffix)
        keys.append(known)
        times.append(many)
        begin.append(np.bincount(inverse[at[whole] == n - 1], minlength=len(known)))
        contexts.append(known // base)
        place = np.full(len(ids), -1)
        place[whole] = inverse
    levels = []
    for n in range(1, order + 1):
        count = times[n - 1]
        if n < order:
            # No token precedes a text: an n-gram that begins texts counts each of them.
            count = np.bincount(suffixes[n - 1], minlength=len(count)) + begin[n - 1]
        if n == 1:
            # The first token of a text is given, so it is not counted.
            count = count - begin[0]
            count[size:] = 0
        below = 1 if n == 1 else len(keys[n - 2])
        levels.append(_Level(keys[n - 1], count, contexts[n - 1], below))
    return tuple(levels)


def _discounts(count: Ints) -> Any:
    """Compute the discounts of counts 0, 1, 2, and 3 or more, (4,) float64."""
    n1, n2, n3, n4 = (int((count == k).sum()) for k in (1, 2, 3, 4))
    if not (n1 and n2):
        # Too little text for an estimate: the usual constant of absolute discounting.
        return np.array([0, 0.75, 0.75, 0.75])
    share = n1 / (n1 + 2 * n2)
    if not (n3 and n4):
        return np.array([0, share, share, share])
    found = [0, 1 - 2 * share * n2 / n1, 2 - 3 * share * n3 / n2, 3 - 4 * share * n4 / n3]
    return np.array([0.0, *(min(max(LEAST, d), k) for k, d in enumerate(found) if k)])
