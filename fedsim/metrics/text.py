"""Metrics of text: ROUGE, and how many tokens are correct.

All of them compare the same pairs of claim and original; see `fedsim.metrics.text_pairs`. Special
tokens are left out, except in the metrics that follow the code of LAMP's authors.
"""

import math
from abc import abstractmethod
from collections import Counter
from typing import ClassVar

from rapidfuzz.distance import Levenshtein

from fedsim.metric import Measure, Metric
from fedsim.metrics.text_pairs import MatchedText, bags, f1, pairs, rouge
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.spec import TextSpec

_BAGS = ("token_counts", "tokens", "text")


class _OfTexts(Metric):
    """A metric of tasks whose inputs are text."""

    fields: ClassVar[tuple[str, ...]] = ("tokens", "text")

    def suits(self, spec: Spec) -> bool:
        """Tasks whose inputs are text."""
        return isinstance(spec, TextSpec)


class _MeanOfTexts(_OfTexts):
    """The mean over all matched texts of a score for each."""

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Mean of `each` over the matched texts."""
        matched = pairs(claimed, truth, spec)
        return sum(self.each(*pair) for pair in matched) / len(matched)

    @abstractmethod
    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """Score one text."""


class _ROUGE(_MeanOfTexts):
    """F score of ROUGE-1, ROUGE-2 or ROUGE-L (Lin, 2004)."""

    order: ClassVar[int]
    """Position of the score in what `rouge` returns."""

    special: ClassVar[bool] = False
    """Whether special tokens such as [CLS] count as words, which raises every score."""

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """F score of one text, in [0, 1]."""
        if self.special:
            return rouge(ours.framed, true.framed)[self.order]
        return rouge(ours.text, true.text)[self.order]


class ROUGE1(_ROUGE):
    """Overlap of single words between recovered and true text."""

    name = "rouge1"
    keywords = ("text reconstruction", "word overlap", "unigrams")
    shown = Measure(
        "ROUGE-1", phrase="{share} of the words of {n} updates recovered", kind="share", rank=20
    )
    order = 0


class ROUGE2(_ROUGE):
    """Overlap of word pairs between recovered and true text."""

    name = "rouge2"
    keywords = ("text reconstruction", "word overlap", "bigrams")
    shown = Measure(
        "ROUGE-2",
        phrase="{share} of the word pairs of {n} updates recovered",
        kind="share",
        rank=30,
    )
    order = 1


class ROUGEL(_ROUGE):
    """Words of recovered and true text in common, in the same order."""

    name = "rougeL"
    keywords = ("text reconstruction", "word order", "longest common subsequence")
    shown = Measure(
        "ROUGE-L",
        phrase="{share} of the words of {n} updates recovered in order",
        kind="share",
        rank=40,
    )
    order = 2


class ROUGE1Authors(ROUGE1):
    """ROUGE-1 with special tokens counted, as LAMP's authors take it."""

    name = "rouge1_authors"
    shown = Measure(
        "ROUGE-1, authors",
        phrase="ROUGE-1 with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=90,
    )
    special = True


class ROUGE2Authors(ROUGE2):
    """ROUGE-2 with special tokens counted, as LAMP's authors take it."""

    name = "rouge2_authors"
    shown = Measure(
        "ROUGE-2, authors",
        phrase="ROUGE-2 with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=100,
    )
    special = True


class ROUGELAuthors(ROUGEL):
    """ROUGE-L with special tokens counted, as LAMP's authors take it."""

    name = "rougeL_authors"
    shown = Measure(
        "ROUGE-L, authors",
        phrase="ROUGE-L with special tokens {share} over {n} updates",
        kind="share",
        detail=True,
        rank=110,
    )
    special = True


class TokenExact(_MeanOfTexts):
    """Texts recovered token by token, without a mistake."""

    name = "token_exact"
    keywords = ("exact match", "text reconstruction")
    shown = Measure(
        "Texts right",
        phrase="every text of {hits} of {n} updates recovered",
        kind="yes/no",
        partly="{share} of the texts in {n} updates recovered",
        rank=50,
    )

    def each(self, ours: MatchedText, true: MatchedText) -> float:
        """1 if the token ids are equal, else 0."""
        return float(ours.ids == true.ids)


class TokenF1(_OfTexts):
    """Tokens recovered, in whatever order, and tokens wrongly claimed."""

    name = "token_f1"
    keywords = ("text reconstruction", "bag of words")
    fields = _BAGS
    shown = Measure("Token F1", phrase="token F1 {share} over {n} updates", kind="share", rank=60)

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """F1 score of the bag of tokens of all texts together, with repetitions."""
        return f1(*bags(claimed, truth, spec))


class TokenSetF1(_OfTexts):
    """Tokens recovered and wrongly claimed, repetitions aside."""

    name = "token_set_f1"
    keywords = ("text reconstruction", "token set")
    fields = _BAGS
    shown = Measure(
        "Token set F1",
        phrase="token set F1 {share} over {n} updates",
        kind="share",
        detail=True,
        rank=70,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """F1 score of the set of tokens of all texts together."""
        ours, true = bags(claimed, truth, spec)
        return f1(Counter(set(ours)), Counter(set(true)))


class TokenEdits(_OfTexts):
    """Tokens to change, take out and put in, of those there are; 0 is a copy."""

    name = "token_edits"
    keywords = ("text reconstruction", "Levenshtein")
    shown = Measure(
        "Token edits",
        phrase="{share} of the tokens to be mended over {n} updates",
        kind="share",
        lower=True,
        detail=True,
        rank=80,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Edit distance of all texts divided by their number of tokens; it may exceed 1.

        NaN if there are no tokens.
        """
        matched = pairs(claimed, truth, spec)
        tokens = sum(len(original.ids) for _, original in matched)
        edits = sum(Levenshtein.distance(ours.ids, original.ids) for ours, original in matched)
        return edits / tokens if tokens else math.nan
