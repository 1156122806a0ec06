"""Claims that are the same for every update, and may score better than drawn labels or texts.

To name every class has a larger F1 than labels drawn at random, and to name the most frequent one
finds more labels than labels drawn by their frequency. To claim no word at all takes fewer edits
than a wrong text, and the most frequent words are in more texts than drawn ones. An attack that
does no better has read nothing from the update.
"""

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedsim.metric import Metric
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.seeds import torch_generator
from fedsim.spec import TextSpec

TRIED = 200
"""Draws of labels over which claims are compared."""

CLEARLY = 3.0
"""Standard errors by which a claim must be better than drawn labels."""

WORDS = (1, 2, 3, 5, 8, 13, 21)
"""Numbers of frequent tokens that are claimed for a text."""

TEXTS = 24
"""Drawn texts on which these are compared."""

MANY = 256
"""Number of classes up to which all are claimed; of more, up to 16 for each label."""


def without_a_word(metric: Metric, truth: Truth, spec: Spec) -> float | None:
    """The score of one empty text; None if it is not defined."""
    with contextlib.suppress(Exception):  # a metric of one's own need not expect an empty text
        value = metric.score(Reconstruction(text=("",)), truth, spec)
        return None if math.isnan(value) else value
    return None


def frequent_tokens(
    metric: Metric, spec: Spec, drawn: Sequence[Reconstruction]
) -> Reconstruction | None:
    """The most frequent tokens, as many for a text as score best on texts drawn by frequency.

    Args:
        metric: A metric of texts.
        spec: What examples of the task look like.
        drawn: Guesses from public data, of which none has seen the victim.

    Returns:
        The same tokens for every text, or other ones for each text, in the order of their
        frequency; None if texts have no tokens.
    """
    texts = [text for guess in drawn for text in guess.tokens or ()]
    if not isinstance(spec, TextSpec) or not texts:
        return None
    tokens, number = spec.tokens, len(drawn[0].tokens or ())
    counts = Counter(i for text in texts for i in tokens.bare(text.tolist()))
    ranked = [token for token, _ in counts.most_common(WORDS[-1] * number)]
    # In a claim, "ed" would become a part of the word before it.
    whole = [token for token in ranked if " " in tokens.spell([token, token]).strip()]
    together = "token_counts" in metric.fields  # of all texts: cheap to score, as none are matched
    lists = [torch.tensor(one) for one in (ranked, whole)]
    claims = [(one[:words],) * number for one in lists for words in WORDS]
    if together:
        for words in WORDS:
            claims.append(lists[0][: words * number].tensor_split(number))
        truths = [Truth(tokens=guess.tokens) for guess in drawn[:TEXTS]]
    else:
        truths = [Truth(tokens=(text,)) for text in texts[:TEXTS]]

    def total(claim: Sequence[Tensor]) -> float:
        claimed = Reconstruction(tokens=tuple(claim if together else claim[:1]))
        return sum(metric.score(claimed, truth, spec) for truth in truths)

    best = (min if metric.shown.lower else max)(claims, key=total)
    return Reconstruction(tokens=tuple(best))


def reads_labels(metric: Metric) -> bool:
    """Whether a metric is about the labels of an update, as a set or as counts."""
    return {"label_set", "label_counts", "labels"}.issuperset(metric.fields)


def fixed_claim(
    metric: Metric, spec: Spec, frequencies: Tensor, count: int
) -> Reconstruction | None:
    """The claim that scores best on labels drawn by their frequencies, chosen without any victim.

    Args:
        metric: A metric that `reads_labels`.
        spec: What examples of the task look like.
        frequencies: How frequent each class is, (classes,), in any unit.
        count: The number of labels in the update.

    Returns:
        The expected counts of the labels, the most frequent label alone, or every label; None if
        drawn labels score as well, or if the metric reads more of the truth than labels.
    """
    settings = metric, spec, tuple(frequencies.double().tolist()), count
    with contextlib.suppress(Exception):
        try:
            return _best(*settings)
        except TypeError:  # a metric with a list among its settings is no key
            return _best.__wrapped__(*settings)
    return None


@functools.lru_cache(maxsize=256)
def _best(
    metric: Metric, spec: Spec, frequencies: tuple[float, ...], count: int
) -> Reconstruction | None:
    weights = torch.tensor(frequencies, dtype=torch.float64)
    rng = torch_generator(0, "fixed claims", wide=False)
    drawn = torch.multinomial(weights, 2 * TRIED * count, True, generator=rng)
    tried = drawn.view(2, TRIED, count)
    truths = [Truth(labels=labels) for labels in tried[0]]

    def scores(claims: list[Reconstruction]) -> Tensor:
        each = [metric.score(*pair, spec) for pair in zip(claims, truths, strict=True)]
        return torch.tensor(each).nan_to_num(nan=0.0) * (1 if metric.higher_is_better else -1)

    usual = scores([_claim(labels) for labels in tried[1]])
    found, best = None, 0.0
    for claim in _claims(weights, count):
        gains = scores([claim] * TRIED) - usual
        mean = float(gains.mean())
        if mean > best and mean > CLEARLY * float(gains.std()) / math.sqrt(TRIED):
            found, best = claim, mean
    return found


def _claims(weights: Tensor, count: int) -> Iterator[Reconstruction]:
    """The expected counts, rounded; the most frequent label alone; and every label once."""
    expected = weights * (count / weights.sum())
    rounded = expected.floor().long()
    rest = (expected - rounded).argsort(descending=True, stable=True)
    rounded[rest[: count - int(rounded.sum())]] += 1
    classes = torch.arange(len(weights))
    yield _claim(classes.repeat_interleave(rounded))
    yield _claim(weights.argmax().repeat(count))
    every = classes[weights > 0]
    if len(every) <= max(MANY, 16 * count):  # more of them than labels score nothing
        yield _claim(every)


def _claim(labels: Tensor) -> Reconstruction:
    return Reconstruction(
        label_set=frozenset(labels.tolist()),
        label_counts=Counter(labels.tolist()),
        labels=labels,
    )
