"""Metrics of labels: sets, counts, distributions and scores.

Chance is a guess of |D| labels, uniform over the n classes. An empty claim is the worst there is.
"""

import math
from collections import Counter

import numpy as np
import torch

from fedsim.metric import Measure, Metric
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


def _sets(claimed: Reconstruction, truth: Truth) -> tuple[frozenset[int], frozenset[int]]:
    """The labels claimed, by `label_set` where there is one, and those that occur."""
    ours = claimed.label_set
    ours = frozenset(claimed_counts(claimed)) if ours is None else ours
    return ours, frozenset(true_counts(truth))


def _length(truth: Truth) -> int:
    """S: the labels behind an update, with multiplicity; of sequences, all of theirs."""
    if truth.sequences is not None:
        return sum(int((one >= 0).sum()) for one in truth.sequences)
    return true_counts(truth).total()


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


_COUNTS = ("label_counts", "labels")
_SETS = ("label_set", "label_counts", "labels")


class AttackSuccessRate(Metric):
    """Attack success rate (LLG): labels right, with multiplicity, divided by labels claimed.

    The denominator is at least the number of labels that there are, so that claiming few does not
    pay.
    """

    name = "asr"
    keywords = ("attack success rate", "label recovery", "accuracy")
    fields = _COUNTS
    shown = Measure(
        "Labels recovered",
        "Attack success rate: share of an update's labels that were named.",
        "{share} of the labels in {n} updates recovered",
        kind="share",
        rank=240,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Overlap of the two multisets / labels emitted; see the summary for the denominator."""
        ours, true = claimed_counts(claimed), true_counts(truth)
        return (ours & true).total() / max(ours.total(), true.total())

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Sum over classes of E[min(Binomial(|D|, 1/n), count)] / |D|."""
        from scipy.stats import binom

        true = true_counts(truth)
        size = true.total()
        # E[min(X, c)] = sum_{k < c} P(X > k)
        above = binom.sf(np.arange(max(true.values())), size, 1 / spec.classes).tolist()
        overlap = sum(above[k] for count in true.values() for k in range(count))
        return float(overlap / size)


class LabelF1(Metric):
    """F1 of the set of labels that occur."""

    name = "label_f1"
    keywords = ("label set", "label recovery", "F-score")
    fields = _SETS
    shown = Measure(
        "Label F1",
        "Balance of labels found and labels wrongly claimed; 100 % is all and no more.",
        "label F1 {share} over {n} updates",
        kind="share",
        rank=260,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, true = _sets(claimed, truth)
        return 2 * len(ours & true) / (len(ours) + len(true))


class LabelPrecision(Metric):
    """Share of the claimed labels that occur, repetitions aside; 0 where none is claimed."""

    name = "label_precision"
    keywords = ("label set", "label recovery")
    fields = _SETS
    shown = Measure(
        "Label precision",
        "Share of the labels named that do occur, repetitions aside.",
        "{share} of the labels named for {n} updates occur",
        kind="share",
        detail=True,
        rank=300,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, true = _sets(claimed, truth)
        return len(ours & true) / len(ours) if ours else 0.0

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Each class is equally likely to be among the guessed ones, however many those are."""
        return len(true_counts(truth)) / spec.classes


class LabelRecall(Metric):
    """Share of the labels that occur which are claimed, repetitions aside."""

    name = "label_recall"
    keywords = ("label set", "label recovery")
    fields = _SETS
    shown = Measure(
        "Label recall",
        "Share of the labels that occur which were named, repetitions aside.",
        "{share} of the labels that occur in {n} updates named",
        kind="share",
        detail=True,
        rank=290,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, true = _sets(claimed, truth)
        return len(ours & true) / len(true)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Probability that |D| draws hit one given class: 1 - (1 - 1/n)^|D|."""
        return 1 - (1 - 1 / spec.classes) ** true_counts(truth).total()


class LabelExact(Metric):
    """1 if every label is right, with multiplicity, else 0."""

    name = "label_exact"
    keywords = ("exact match", "label recovery")
    fields = _COUNTS
    shown = Measure(
        "All labels right",
        "Updates whose labels were recovered completely, without a mistake.",
        "labels of {hits} of {n} updates recovered",
        kind="yes/no",
        rank=250,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        return float(claimed_counts(claimed) == true_counts(truth))

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Probability of this multiset under |D| uniform draws: multinomial."""
        true = true_counts(truth)
        size = true.total()
        log = math.lgamma(size + 1) - sum(math.lgamma(n + 1) for n in true.values())
        return math.exp(log - size * math.log(spec.classes))


class LabelSetExact(Metric):
    """1 if the set of labels is right, repetitions aside, else 0."""

    name = "label_set_exact"
    keywords = ("exact match", "label set", "label recovery")
    fields = ("label_set",)
    shown = Measure(
        "Label set right",
        "Updates whose set of labels was named without a mistake.",
        "label set of {hits} of {n} updates recovered",
        kind="yes/no",
        detail=True,
        rank=270,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        ours, true = _sets(claimed, truth)
        return float(ours == true)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Probability that |D| uniform draws have this very set.

        A Markov chain over how many of its m labels were drawn: a draw keeps k with probability
        k / n, makes it k + 1 with (m - k) / n, and fails otherwise.
        """
        true = true_counts(truth)
        m, n = len(true), spec.classes
        step = np.diag(np.arange(m + 1) / n) + np.diag((m - np.arange(m)) / n, k=1)
        return float(np.linalg.matrix_power(step, true.total())[0, m])


class LengthError(Metric):
    """Distance of the claimed number of labels from the true one, with multiplicity."""

    name = "length_error"
    keywords = ("batch size", "number of labels")
    fields = ("num_labels",)
    shown = Measure(
        "Length error",
        "Distance of the claimed from the true number of labels.",
        "number of labels {value} off over {n} updates",
        lower=True,
        detail=True,
        rank=280,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        # `Metric.score` has seen to it that there is a number.
        return float(abs((claimed.num_labels or 0) - _length(truth)))

    def chance(self, truth: Truth, spec: Spec) -> float:
        """E|U - S| for U uniform over 1 to n: a gradient's rank cannot show more."""
        return sum(abs(k - _length(truth)) for k in range(1, spec.classes + 1)) / spec.classes


class Hellinger(Metric):
    """Hellinger distance of the claimed and true shares of the labels.

    0 for equal shares, 1 for disjoint labels or where nothing is claimed.
    """

    name = "hellinger"
    keywords = ("label distribution", "distance")
    fields = _COUNTS
    shown = Measure(
        "Hellinger distance",
        "Distance of the claimed and true shares of the labels; 0 is the same, 1 is disjoint.",
        "Hellinger distance of label shares {value} over {n} updates",
        lower=True,
        detail=True,
        rank=310,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """sqrt(sum over classes of (sqrt p - sqrt q)^2 / 2) of the shares p claimed and q true."""
        ours, true = claimed_counts(claimed), true_counts(truth)
        if not ours:
            return 1.0
        squares = sum(
            (math.sqrt(ours[k] / ours.total()) - math.sqrt(true[k] / true.total())) ** 2
            for k in ours.keys() | true.keys()
        )
        return math.sqrt(squares / 2)


class LabelCorrelation(Metric):
    """Absolute correlation (Pearson) of one score per class with the true counts (LLG, figure 3c).

    Not defined where every class occurs equally often.
    """

    name = "label_correlation"
    keywords = ("label distribution", "Pearson")
    fields = ("label_scores",)
    shown = Measure(
        "Label correlation",
        "How well scores of the labels follow their true counts (Pearson's r, sign aside).",
        "label scores correlate {value} with the true counts over {n} updates",
        detail=True,
        rank=320,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """|Pearson's r| over the classes, float64.

        NaN where every class occurs equally often: there is nothing to order. 0 for scores that
        are all the same, or hold NaN or Inf.
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

    def chance(self, truth: Truth, spec: Spec) -> float:
        """E|r| of scores in a random direction: Gamma(m/2) / (sqrt(pi) Gamma((m+1)/2)), m = n - 1.

        Without its mean, a vector of n normal scores has a uniform direction in m dimensions; r is
        one coordinate of that direction.
        """
        if len({true_counts(truth)[k] for k in range(spec.classes)}) == 1:
            return math.nan
        m = spec.classes - 1
        return math.exp(math.lgamma(m / 2) - math.lgamma((m + 1) / 2)) / math.sqrt(math.pi)

    def suits(self, spec: Spec) -> bool:
        """Three classes at least: two points always lie on a line."""
        return spec.classes > 2


LABELS = (
    AttackSuccessRate,
    LabelF1,
    LabelPrecision,
    LabelRecall,
    LabelExact,
    LabelSetExact,
    LengthError,
    Hellinger,
    LabelCorrelation,
)
"""The metrics of labels, in the order in which findings list them."""
