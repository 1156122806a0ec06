"""Matching of claimed texts to the originals, and scores of the similarity of two texts.

Texts are matched one-to-one so that the sum of ROUGE-1, ROUGE-2, ROUGE-L and the F1 of tokens is
largest (Hungarian algorithm). An original without a claim is compared with the empty text. If there
are more claims than originals, only the first count. Claimed tokens are spelled, and a claimed text
is tokenised, by the victim's tokenizer. Special tokens are left out, the unknown one among them.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from fedsim.metrics.assignment import assigned
from fedsim.records import Reconstruction, Spec, Tokens, Truth
from fedsim.spec import TextSpec


class MatchedText(NamedTuple):
    """One text.

    Attributes:
        text: The text without special tokens.
        framed: The text with special tokens.
        ids: The token ids without special tokens.
    """

    text: str
    framed: str
    ids: tuple[int, ...]


NOTHING = MatchedText("", "", ())


def read(claimed: Reconstruction, truth: Truth, spec: Spec) -> list[str]:
    """The claimed text that is matched to each original; "" if there is none."""
    return [ours.text for ours, _ in pairs(claimed, truth, spec)]


def _from_ids(ids: Iterable[int], tokens: Tokens) -> MatchedText:
    found = [i for i in map(int, ids) if i != tokens.special.get("pad")]
    bare = tuple(tokens.bare(found))
    if not bare:
        return NOTHING
    if len(bare) == len(found):
        found = [*tokens.prefix, *bare, *tokens.suffix]
    return MatchedText(tokens.spell(bare), tokens.spell(found, special=True), bare)


def _from_text(text: str, tokens: Tokens) -> MatchedText:
    # The tokenizer fails on surrogates, which UTF-8 cannot encode.
    clean = " ".join(str(text).encode(errors="replace").decode().split())
    if not clean:
        return NOTHING
    before = tokens.spell(tokens.prefix, special=True)
    after = tokens.spell(tokens.suffix, special=True)
    ids = tuple(tokens.bare(tokens.encode(clean)))
    return MatchedText(clean, f"{before} {clean} {after}".strip(), ids)


def _claims(claimed: Reconstruction, tokens: Tokens, most: int) -> tuple[MatchedText, ...]:
    from_ids = [_from_ids(one.tolist(), tokens) for one in (claimed.tokens or ())[:most]]
    spelled = [_from_text(text, tokens) for text in (claimed.text or ())[:most]]
    both = [
        MatchedText(text.text, own.framed, own.ids)
        for text, own in zip(spelled, from_ids, strict=False)
    ]
    # One of several texts may be claimed in one way alone.
    return (*both, *spelled[len(both) :], *from_ids[len(both) :])


def pairs(
    claimed: Reconstruction, truth: Truth, spec: Spec
) -> list[tuple[MatchedText, MatchedText]]:
    """Pairs of a matched claim and its original; the claim is empty if there is none."""
    tokens = spec.require(TextSpec).tokens
    if truth.tokens is None:
        raise ValueError("this task's truth has no tokens, so no metric of text applies")
    originals = tuple(_from_ids(one.tolist(), tokens) for one in truth.tokens)
    claims = _claims(claimed, tokens, len(originals))
    places = _matched(claims, originals)
    return [
        (claims[place] if place >= 0 else NOTHING, true)
        for place, true in zip(places, originals, strict=True)
    ]


@functools.lru_cache(maxsize=512)
def _matched(
    claims: tuple[MatchedText, ...], originals: tuple[MatchedText, ...]
) -> tuple[int, ...]:
    """For each original the index of its claim, or -1."""

    def similarity(ours: MatchedText, true: MatchedText) -> float:
        return sum(rouge(ours.text, true.text)) + f1(Counter(ours.ids), Counter(true.ids))

    return tuple(assigned([[-similarity(ours, true) for ours in claims] for true in originals]))


class _Words:
    """Words in lower case; ROUGE's own tokenizer drops all letters beyond a to z."""

    def tokenize(self, text: str) -> list[str]:
        return [word for word in re.split(r"[\W_]+", text.lower()) if word]


@functools.cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2", "rougeL"], tokenizer=_Words())


@functools.lru_cache(maxsize=65_536)
def rouge(claimed: str, original: str) -> tuple[float, float, float]:
    """F scores of ROUGE-1, ROUGE-2 and ROUGE-L (Lin, 2004), in [0, 1]."""
    found = _scorer().score(original, claimed)
    return tuple(float(found[n].fmeasure) for n in ("rouge1", "rouge2", "rougeL"))  # type: ignore[return-value]


def f1(ours: Counter[int], true: Counter[int]) -> float:
    """F1 score of two bags of tokens; 1 if both are empty."""
    total = ours.total() + true.total()
    return 2 * (ours & true).total() / total if total else 1.0


def bags(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Counter[int], Counter[int]]:
    """Counts of the claimed and of the true tokens, all texts together, without special tokens."""
    tokens = spec.require(TextSpec).tokens
    if claimed.token_counts is not None:
        counts = {k: n for k, n in claimed.token_counts.items() if k not in tokens.marks and n > 0}
        ours = Counter(counts)
    else:
        most = max(len(claimed.tokens or ()), len(claimed.text or ()))
        ours = Counter(i for one in _claims(claimed, tokens, most) for i in one.ids)
    true = Counter(i for one in truth.tokens or () for i in tokens.bare(one.tolist()))
    return ours, true
