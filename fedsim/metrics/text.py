"""Metrics of text: ROUGE, and the tokens that are right.

Claimed texts are matched one-to-one to the originals so that the sum of ROUGE-1, ROUGE-2, ROUGE-L
and the F1 of tokens is greatest (Hungarian), and every metric scores the same pairs; an original
without a claim counts as answered with nothing. Of more claims than originals only the first count.
A claim of tokens is spelled, and a claim of text alone is split, by the victim's tokenizer.
Special tokens, the unknown one among them, are left out but for the scores of LAMP's authors.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from fedsim.metrics.registry import Metric, Score
from fedsim.records import Reconstruction, Spec, Tokens, Truth

__all__ = ["TEXT", "read"]


class _Said(NamedTuple):
    """A text, what it is with special tokens, and its token ids without them."""

    text: str
    framed: str
    ids: tuple[int, ...]


NOTHING = _Said("", "", ())


def read(claimed: Reconstruction, truth: Truth, spec: Spec) -> list[str]:
    """For every true text the claimed one matched to it, "" where none is left."""
    return [ours.text for ours, _ in _pairs(claimed, truth, spec)]


def _vocabulary(spec: Spec) -> Tokens:
    if spec.tokens is None:
        raise ValueError("this task's inputs are no text, so no metric of text applies")
    return spec.tokens


def _from_ids(ids: Iterable[int], tokens: Tokens) -> _Said:
    found = [i for i in map(int, ids) if i != tokens.special.get("pad")]
    bare = tuple(tokens.bare(found))
    if not bare:
        return NOTHING
    if len(bare) == len(found):
        found = [*tokens.prefix, *bare, *tokens.suffix]
    return _Said(tokens.spell(bare), tokens.spell(found, special=True), bare)


def _from_text(text: str, tokens: Tokens) -> _Said:
    # What UTF-8 cannot hold would stop the tokenizer.
    clean = " ".join(str(text).encode(errors="replace").decode().split())
    if not clean:
        return NOTHING
    before = tokens.spell(tokens.prefix, special=True)
    after = tokens.spell(tokens.suffix, special=True)
    ids = tuple(tokens.bare(tokens.encode(clean)))
    return _Said(clean, f"{before} {clean} {after}".strip(), ids)


def _claims(claimed: Reconstruction, tokens: Tokens, most: int) -> tuple[_Said, ...]:
    ids = None if claimed.tokens is None else [one.tolist() for one in claimed.tokens[:most]]
    if claimed.text is None:
        return tuple(_from_ids(one, tokens) for one in ids or ())
    said = [_from_text(text, tokens) for text in claimed.text[:most]]
    if ids is None:
        return tuple(said)
    both = zip(said, (_from_ids(one, tokens) for one in ids), strict=False)
    return tuple(_Said(spelled.text, own.framed, own.ids) for spelled, own in both)


def _pairs(claimed: Reconstruction, truth: Truth, spec: Spec) -> list[tuple[_Said, _Said]]:
    """For every original the claim matched to it, and the original."""
    tokens = _vocabulary(spec)
    if truth.tokens is None:
        raise ValueError("this task's truth has no tokens, so no metric of text applies")
    originals = tuple(_from_ids(one.tolist(), tokens) for one in truth.tokens)
    claims = _claims(claimed, tokens, len(originals))
    found = [NOTHING] * len(originals)
    for row, column in _matched(claims, originals):
        found[row] = claims[column]
    return list(zip(found, originals, strict=True))


@functools.lru_cache(maxsize=512)
def _matched(
    claims: tuple[_Said, ...], originals: tuple[_Said, ...]
) -> tuple[tuple[int, int], ...]:
    """(original, claim) for each original to which a claim is matched."""
    from scipy.optimize import linear_sum_assignment

    if not claims:
        return ()
    gain = [
        [sum(_rouge(ours.text, true.text)) + _f1(Counter(ours.ids), Counter(true.ids))
         for ours in claims]
        for true in originals
    ]  # fmt: skip
    rows, columns = linear_sum_assignment(gain, maximize=True)
    return tuple(zip(rows.tolist(), columns.tolist(), strict=True))


@functools.cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)


@functools.lru_cache(maxsize=65_536)
def _rouge(claimed: str, original: str) -> tuple[float, float, float]:
    """F of ROUGE-1, ROUGE-2 and ROUGE-L (Lin, 2004), in [0, 1]."""
    found = _scorer().score(original, claimed)
    return tuple(float(found[n].fmeasure) for n in ("rouge1", "rouge2", "rougeL"))  # type: ignore[return-value]


def _f1(ours: Counter[int], true: Counter[int]) -> float:
    total = ours.total() + true.total()
    return 2 * (ours & true).total() / total if total else 1.0


def _mean(score: Callable[[_Said, _Said], float]) -> Score:
    def compute(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        pairs = _pairs(claimed, truth, spec)
        return sum(score(*pair) for pair in pairs) / len(pairs)

    return compute


def _rouges(place: int, *, special: bool = False) -> Score:
    if special:
        return _mean(lambda ours, true: _rouge(ours.framed, true.framed)[place])
    return _mean(lambda ours, true: _rouge(ours.text, true.text)[place])


def _bags(claimed: Reconstruction, truth: Truth, spec: Spec) -> tuple[Counter[int], Counter[int]]:
    """Tokens claimed and true, all texts together, by how often they occur."""
    tokens = _vocabulary(spec)
    if claimed.token_counts is not None:
        counts = {k: n for k, n in claimed.token_counts.items() if k not in tokens.marks and n > 0}
        ours = Counter(counts)
    else:
        most = max(len(claimed.tokens or ()), len(claimed.text or ()))
        ours = Counter(i for one in _claims(claimed, tokens, most) for i in one.ids)
    true = Counter(i for one in truth.tokens or () for i in tokens.bare(one.tolist()))
    return ours, true


def _token_f1(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    return _f1(*_bags(claimed, truth, spec))


def _token_set_f1(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    ours, true = _bags(claimed, truth, spec)
    return _f1(Counter(set(ours)), Counter(set(true)))


def _token_edits(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    pairs = _pairs(claimed, truth, spec)
    return sum(_edits(a.ids, b.ids) for a, b in pairs) / sum(len(b.ids) for _, b in pairs)


def _edits(claimed: tuple[int, ...], original: tuple[int, ...]) -> int:
    """Tokens to substitute, delete and insert, the fewest (Levenshtein)."""
    ours, at = np.asarray(claimed), np.arange(len(claimed) + 1)
    row = at
    for count, token in enumerate(original, 1):
        above = np.concatenate([[count], np.minimum(row[1:] + 1, row[:-1] + (ours != token))])
        # An insertion costs one a step, so that the best way from the left is a running minimum.
        row = np.minimum.accumulate(above - at) + at
    return int(row[-1])


def _has_tokens(spec: Spec) -> bool:
    return spec.tokens is not None


def _metric(name: str, summary: str, compute: Score, *, bag: bool = False) -> Metric:
    fields = ("tokens", "text")
    return Metric(
        name,
        summary,
        ("token_counts", *fields) if bag else fields,
        name != "token_edits",
        compute,
        suits=_has_tokens,
    )


TEXT = (
    _metric("rouge1", "F of ROUGE-1: words that claim and original share", _rouges(0)),
    _metric("rouge2", "F of ROUGE-2: pairs of adjacent words that both share", _rouges(1)),
    _metric("rougeL", "F of ROUGE-L: their longest common subsequence of words", _rouges(2)),
    _metric(
        "rouge1_authors",
        "ROUGE-1 as LAMP's authors take it, with special tokens such as [CLS] counted as words, "
        "which puts every score up",
        _rouges(0, special=True),
    ),
    _metric("rouge2_authors", "the same of ROUGE-2", _rouges(1, special=True)),
    _metric("rougeL_authors", "the same of ROUGE-L", _rouges(2, special=True)),
    _metric(
        "token_exact",
        "share of the texts whose tokens are all right, in their order",
        _mean(lambda ours, true: float(ours.ids == true.ids)),
    ),
    _metric(
        "token_f1",
        "F1 of the bag of tokens of all texts together, repetitions counted",
        _token_f1,
        bag=True,
    ),
    _metric(
        "token_set_f1",
        "F1 of the set of tokens of all texts together, repetitions aside",
        _token_set_f1,
        bag=True,
    ),
    _metric(
        "token_edits",
        "edit distance: tokens to substitute, delete and insert / tokens there are; 0 if exact, "
        "and above 1 where more is claimed than there is",
        _token_edits,
    ),
)
"""The metrics of text, in the order they are reported."""
