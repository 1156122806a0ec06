"""Metrics of labels: sets, counts, distributions and scores.

Chance is a guess of |D| labels, uniform over the n classes. An empty claim is the worst there is.
"""

import math
from collections import Counter

import numpy as np
import torch

from fedsim.metrics.registry import Metric
from fedsim.records import Reconstruction, Spec, Truth

__all__ = ["LABELS", "claimed_counts", "true_counts"]

CONSTANT = 1e-12
"""A vector that strays from its mean by less than this share of its largest entry is constant."""


def claimed_counts(claimed: Reconstruction) -> Counter[int]:
    """How often each label is claimed: `label_counts`, else the labels an example."""
    if claimed.label_counts is not None:
        return Counter({k: n for k, n in claimed.label_counts.items() if n > 0})
    return Counter([] if claimed.labels is None else claimed.labels.flatten().tolist())


def true_counts(truth: Truth) -> Counter[int]:
    """How often each label occurs among the victim's examples."""
    if truth.labels is None:
        raise ValueError("this task's truth has no labels, so no label metric applies")
    return Counter(truth.labels.flatten().tolist())


def _asr(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    """Overlap of the two multisets / labels emitted; see the summary for the denominator."""
    ours, true = claimed_counts(claimed), true_counts(truth)
    return (ours & true).total() / max(ours.total(), true.total())


def _asr_chance(truth: Truth, spec: Spec) -> float:
    """Sum over classes of E[min(Binomial(|D|, 1/n), count)] / |D|."""
    from scipy.stats import binom

    true = true_counts(truth)
    size = true.total()
    # E[min(X, c)] = sum_{k < c} P(X > k)
    above = binom.sf(np.arange(max(true.values())), size, 1 / spec.classes).tolist()
    overlap = sum(above[k] for count in true.values() for k in range(count))
    return float(overlap / size)


def _sets(claimed: Reconstruction, truth: Truth) -> tuple[frozenset[int], frozenset[int]]:
    """The labels claimed, by `label_set` where there is one, and those that occur."""
    ours = claimed.label_set
    ours = frozenset(claimed_counts(claimed)) if ours is None else ours
    return ours, frozenset(true_counts(truth))


def _label_f1(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    ours, true = _sets(claimed, truth)
    return 2 * len(ours & true) / (len(ours) + len(true))


def _label_precision(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    ours, true = _sets(claimed, truth)
    return len(ours & true) / len(ours) if ours else 0.0


def _label_precision_chance(truth: Truth, spec: Spec) -> float:
    """Any class is as likely as another to be among the guessed ones, however many those are."""
    return len(true_counts(truth)) / spec.classes


def _label_recall(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    ours, true = _sets(claimed, truth)
    return len(ours & true) / len(true)


def _label_recall_chance(truth: Truth, spec: Spec) -> float:
    """Probability that |D| draws hit one given class: 1 - (1 - 1/n)^|D|."""
    return 1 - (1 - 1 / spec.classes) ** true_counts(truth).total()


def _label_set_exact(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    ours, true = _sets(claimed, truth)
    return float(ours == true)


def _label_set_exact_chance(truth: Truth, spec: Spec) -> float:
    """Probability that |D| uniform draws have this very set.

    A chain over how many of its m labels were drawn: a draw keeps k with probability k / n, makes
    it k + 1 with (m - k) / n, and spoils it otherwise.
    """
    true = true_counts(truth)
    m, n = len(true), spec.classes
    step = np.diag(np.arange(m + 1) / n) + np.diag((m - np.arange(m)) / n, k=1)
    return float(np.linalg.matrix_power(step, true.total())[0, m])


def _length_error(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    # `Metric.score` has seen to it that there is a number.
    return float(abs((claimed.num_labels or 0) - _length(truth)))


def _length_error_chance(truth: Truth, spec: Spec) -> float:
    """E|U - S| for U uniform over 1 to n: a gradient's rank cannot show more."""
    return sum(abs(k - _length(truth)) for k in range(1, spec.classes + 1)) / spec.classes


def _length(truth: Truth) -> int:
    """S: the labels behind an update, with multiplicity; of sequences, all of theirs."""
    if truth.sequences is not None:
        return sum(int((one >= 0).sum()) for one in truth.sequences)
    return true_counts(truth).total()


def _label_exact(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    return float(claimed_counts(claimed) == true_counts(truth))


def _label_exact_chance(truth: Truth, spec: Spec) -> float:
    """Probability of this multiset under |D| uniform draws: multinomial."""
    true = true_counts(truth)
    size = true.total()
    log = math.lgamma(size + 1) - sum(math.lgamma(n + 1) for n in true.values())
    return math.exp(log - size * math.log(spec.classes))


def _hellinger(claimed: Reconstruction, truth: Truth, _: Spec) -> float:
    """sqrt(sum over classes of (sqrt p - sqrt q)^2 / 2) of the shares p claimed and q true."""
    ours, true = claimed_counts(claimed), true_counts(truth)
    if not ours:
        return 1.0
    squares = sum(
        (math.sqrt(ours[k] / ours.total()) - math.sqrt(true[k] / true.total())) ** 2
        for k in ours.keys() | true.keys()
    )
    return math.sqrt(squares / 2)


def _label_correlation(claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
    """|Pearson's r| over the classes, float64.

    Where every class occurs equally often there is nothing to order: NaN. Scores that are all the
    same, or hold NaN or Inf, say nothing: 0.
    """
    if claimed.label_scores is None or claimed.label_scores.shape != (spec.classes,):
        found = "none" if claimed.label_scores is None else tuple(claimed.label_scores.shape)
        raise ValueError(f"label_scores has shape {found}, expected ({spec.classes},)")
    counts = true_counts(truth)
    true = _direction(torch.tensor([float(counts[k]) for k in range(spec.classes)]).double())
    ours = _direction(claimed.label_scores.detach().cpu().double())
    if true is None:
        return math.nan
    return 0.0 if ours is None else min(1.0, abs(float(ours @ true)))


def _direction(values: torch.Tensor) -> torch.Tensor | None:
    """The vector without its mean, length 1; None for one that is constant or not finite."""
    largest = float(values.abs().max())
    if not math.isfinite(largest) or largest == 0:
        return None
    centred = values / largest
    centred = centred - centred.mean()
    if float(centred.abs().max()) < CONSTANT:
        return None
    return torch.nn.functional.normalize(centred, dim=0)


def _label_correlation_chance(truth: Truth, spec: Spec) -> float:
    """E|r| of scores in a random direction: Gamma(m/2) / (sqrt(pi) Gamma((m+1)/2)), m = n - 1.

    Without its mean, a vector of n normal scores points anywhere in m dimensions alike; r is one
    coordinate of that direction.
    """
    if len({true_counts(truth)[k] for k in range(spec.classes)}) == 1:
        return math.nan
    m = spec.classes - 1
    return math.exp(math.lgamma(m / 2) - math.lgamma((m + 1) / 2)) / math.sqrt(math.pi)


_COUNTS = ("label_counts", "labels")
_SETS = ("label_set", "label_counts", "labels")

LABELS = (
    Metric(
        "asr",
        "attack success rate (LLG): labels right, with multiplicity, / labels emitted (at least "
        "as many as there are, so that claiming few does not pay)",
        _COUNTS,
        True,
        _asr,
        chance=_asr_chance,
    ),
    Metric("label_f1", "F1 of the set of labels that occur", _SETS, True, _label_f1),
    Metric(
        "label_precision",
        "share of the claimed labels that occur, repetitions aside; 0 where none is claimed",
        _SETS,
        True,
        _label_precision,
        chance=_label_precision_chance,
    ),
    Metric(
        "label_recall",
        "share of the labels that occur which are claimed, repetitions aside",
        _SETS,
        True,
        _label_recall,
        chance=_label_recall_chance,
    ),
    Metric(
        "label_exact",
        "1 if every label is right, with multiplicity, else 0",
        _COUNTS,
        True,
        _label_exact,
        chance=_label_exact_chance,
    ),
    Metric(
        "label_set_exact",
        "1 if the set of labels is right, repetitions aside, else 0",
        ("label_set",),
        True,
        _label_set_exact,
        chance=_label_set_exact_chance,
    ),
    Metric(
        "length_error",
        "distance of the claimed number of labels from the true one, with multiplicity",
        ("num_labels",),
        False,
        _length_error,
        chance=_length_error_chance,
    ),
    Metric(
        "hellinger",
        "Hellinger distance of the claimed and true shares of the labels: 0 the same, 1 disjoint, "
        "or nothing claimed",
        _COUNTS,
        False,
        _hellinger,
    ),
    Metric(
        "label_correlation",
        "absolute correlation (Pearson) of a score a class with the true counts (LLG, figure 3c); "
        "not defined where every class occurs equally often",
        ("label_scores",),
        True,
        _label_correlation,
        chance=_label_correlation_chance,
        # Two points are always on a line.
        suits=lambda spec: spec.classes > 2,
    ),
)
"""The metrics of labels, in the order they are reported."""
