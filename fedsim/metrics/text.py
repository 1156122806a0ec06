"""Metrics of text: ROUGE, and the tokens that are right.

All of them compare the same pairs of claim and original; see `fedsim.metrics.text_pairs`. Special
tokens are left out, except by the scores of LAMP's authors.
"""

from abc import abstractmethod
from collections import Counter
from typing import ClassVar

import numpy as np

from fedsim.metric import Measure, Metric
from fedsim.metrics.text_pairs import MatchedText, bags, f1, pairs, rouge
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import TextSpec

__all__ = ["TEXT"]

_BAGS = ("token_counts", "tokens", "text")


class _OfTexts(Metric):
    """A metric of tasks whose inputs are text."""

    fields: ClassVar[tuple[str, ...]] = ("tokens", "text")

    def suits(self, spec: Spec) -> bool:
        """Tasks whose inputs are text."""
        return isinstance(spec, TextSpec)


class _MeanOfTexts(_OfTexts):
    """A mean over the matched texts of a score of each."""

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """The mean of `each` over the matched texts."""
        matched = pairs(claimed, truth, spec)
        return sum(self.each(*pair) for pair in matched) / len(matched)

    @abstractmethod
    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""


class ROUGE1(_MeanOfTexts):
    """F of ROUGE-1: words that claim and original share."""

    name = "rouge1"
    keywords = ("text reconstruction", "word overlap", "unigrams")
    shown = Measure(
        "ROUGE-1",
        "Overlap of single words between recovered and true text.",
        "{share} of the words of {n} updates recovered",
        kind="share",
        rank=20,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.text, true.text)[0]


class ROUGE2(_MeanOfTexts):
    """F of ROUGE-2: pairs of adjacent words that both share."""

    name = "rouge2"
    keywords = ("text reconstruction", "word overlap", "bigrams")
    shown = Measure(
        "ROUGE-2",
        "Overlap of word pairs between recovered and true text.",
        "{share} of the word pairs of {n} updates recovered",
        kind="share",
        rank=30,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.text, true.text)[1]


class ROUGEL(_MeanOfTexts):
    """F of ROUGE-L: their longest common subsequence of words."""

    name = "rougeL"
    keywords = ("text reconstruction", "word order", "longest common subsequence")
    shown = Measure(
        "ROUGE-L",
        "Words of recovered and true text in common, in the same order.",
        "{share} of the words of {n} updates recovered in order",
        kind="share",
        rank=40,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.text, true.text)[2]


class ROUGE1Authors(_MeanOfTexts):
    """ROUGE-1 as computed by LAMP's authors.

    Special tokens such as [CLS] count as words, which raises every score.
    """

    name = "rouge1_authors"
    keywords = ("text reconstruction", "word overlap", "unigrams")
    shown = Measure(
        "ROUGE-1, authors",
        "ROUGE-1 with special tokens counted, as LAMP's authors take it.",
        "ROUGE-1 with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=90,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.framed, true.framed)[0]


class ROUGE2Authors(_MeanOfTexts):
    """ROUGE-2 as computed by LAMP's authors, special tokens included."""

    name = "rouge2_authors"
    keywords = ("text reconstruction", "word overlap", "bigrams")
    shown = Measure(
        "ROUGE-2, authors",
        "ROUGE-2 with special tokens counted, as LAMP's authors take it.",
        "ROUGE-2 with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=100,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.framed, true.framed)[1]


class ROUGELAuthors(_MeanOfTexts):
    """ROUGE-L as computed by LAMP's authors, special tokens included."""

    name = "rougeL_authors"
    keywords = ("text reconstruction", "word order", "longest common subsequence")
    shown = Measure(
        "ROUGE-L, authors",
        "ROUGE-L with special tokens counted, as LAMP's authors take it.",
        "ROUGE-L with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=110,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return rouge(ours.framed, true.framed)[2]


class TokenExact(_MeanOfTexts):
    """Share of the texts whose tokens are all right, in their order."""

    name = "token_exact"
    keywords = ("exact match", "text reconstruction")
    shown = Measure(
        "Texts right",
        "Texts recovered token by token, without a mistake.",
        "every text of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the texts in {n} updates recovered",
        rank=50,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """The score of one text."""
        return float(ours.ids == true.ids)


class TokenF1(_OfTexts):
    """F1 of the bag of tokens of all texts together, repetitions counted."""

    name = "token_f1"
    keywords = ("text reconstruction", "bag of words")
    fields = _BAGS
    shown = Measure(
        "Token F1",
        "Tokens recovered, in whatever order, and tokens wrongly claimed.",
        "token F1 {share} over {n} updates",
        kind="share",
        rank=60,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        return f1(*bags(claimed, truth, spec))


class TokenSetF1(_OfTexts):
    """F1 of the set of tokens of all texts together, repetitions aside."""

    name = "token_set_f1"
    keywords = ("text reconstruction", "token set")
    fields = _BAGS
    shown = Measure(
        "Token set F1",
        "Tokens recovered and wrongly claimed, repetitions aside.",
        "token set F1 {share} over {n} updates",
        kind="share",
        detail=True,
        rank=70,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, true = bags(claimed, truth, spec)
        return f1(Counter(set(ours)), Counter(set(true)))


def _edits(claimed: tuple[int, ...], original: tuple[int, ...]) -> int:
    """Tokens to substitute, delete and insert, the fewest (Levenshtein)."""
    ours, at = np.asarray(claimed), np.arange(len(claimed) + 1)
    row = at
    for count, token in enumerate(original, 1):
        above = np.concatenate([[count], np.minimum(row[1:] + 1, row[:-1] + (ours != token))])
        # An insertion costs one a step, so that the best way from the left is a running minimum.
        row = np.minimum.accumulate(above - at) + at
    return int(row[-1])


class TokenEdits(_OfTexts):
    """Edit distance: tokens to substitute, delete and insert, divided by tokens there are.

    0 for an exact match, and above 1 where more is claimed than there is.
    """

    name = "token_edits"
    keywords = ("text reconstruction", "Levenshtein")
    shown = Measure(
        "Token edits",
        "Tokens to change, take out and put in, of those there are; 0 is a copy.",
        "{share} of the tokens to be mended over {n} updates",
        kind="share",
        lower=True,
        detail=True,
        rank=80,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        matched = pairs(claimed, truth, spec)
        return sum(_edits(a.ids, b.ids) for a, b in matched) / sum(len(b.ids) for _, b in matched)


TEXT = (
    ROUGE1,
    ROUGE2,
    ROUGEL,
    ROUGE1Authors,
    ROUGE2Authors,
    ROUGELAuthors,
    TokenExact,
    TokenF1,
    TokenSetF1,
    TokenEdits,
)
"""The metrics of text, in the order in which findings list them."""
