"""Metrics of labels: sets, counts, distributions and scores.

D are the labels behind an update, |D| their number and n the number of classes. The chance level is
that of |D| labels drawn uniformly. An empty claim has the worst value.
"""

import functools
import math
from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

from fedsim.metric import Measure, Metric
from fedsim.records import Reconstruction, Spec, Truth

CONSTANT = 1e-12
"""Share of its largest entry by which a vector that is not constant exceeds its mean."""


def claimed_counts(claimed: Reconstruction) -> Counter[int]:
    """Count each claimed label; labels with several values for an example claim nothing."""
    if claimed.label_counts is not None:
        return Counter({k: n for k, n in claimed.label_counts.items() if n > 0})
    if (labels := claimed.labels) is None or labels.shape[1:].numel() != 1:
        return Counter()
    return Counter(labels.flatten().tolist())


def true_counts(truth: Truth) -> Counter[int]:
    """Count each label of the victim's examples."""
    if truth.labels is None:
        raise ValueError("this task's truth has no labels, so no label metric applies")
    return Counter(truth.labels.flatten().tolist())


def _sets(claimed: Reconstruction, truth: Truth) -> tuple[frozenset[int], frozenset[int]]:
    """The set of claimed labels (`label_set`, else from the counts) and the true set."""
    ours = claimed.label_set
    ours = frozenset(claimed_counts(claimed)) if ours is None else ours
    return ours, frozenset(true_counts(truth))


def _length(truth: Truth) -> int:
    """Count the labels behind an update, with multiplicity; of sequences all their labels."""
    if truth.sequences is not None:
        return sum(int((one >= 0).sum()) for one in truth.sequences)
    return true_counts(truth).total()


def _direction(values: torch.Tensor) -> torch.Tensor | None:
    """Centre a vector and scale it to length 1; None if it is constant or not finite."""
    largest = float(values.abs().max())
    if not math.isfinite(largest) or largest == 0:
        return None
    centred = values / largest
    centred = centred - centred.mean()
    if float(centred.abs().max()) < CONSTANT:
        return None
    return torch.nn.functional.normalize(centred, dim=0)


@functools.lru_cache(maxsize=64)
def _different(draws: int, classes: int) -> NDArray[np.float64]:
    """The probability of each number of different labels among uniform draws, from 0 on."""
    found = np.zeros(min(draws, classes) + 1)
    found[0], seen = 1.0, np.arange(len(found)) / classes
    for _ in range(draws):
        found[1:] = found[1:] * seen[1:] + found[:-1] * (1 - seen[:-1])
        found[0] = 0.0
    return found


_COUNTS = ("label_counts", "labels")
_SETS = ("label_set", "label_counts", "labels")


class AttackSuccessRate(Metric):
    """Attack success rate: share of an update's labels that were named.

    Correct labels with multiplicity, divided by the larger of the numbers of claimed and of true
    labels, so that a short claim is no advantage (LLG).
    """

    name = "asr"
    keywords = ("attack success rate", "label recovery", "accuracy")
    fields = _COUNTS
    shown = Measure(
        "Labels recovered",
        phrase="{share} of the labels in {n} updates recovered",
        kind="share",
        rank=240,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """Size of the intersection of both multisets, divided by the size of the larger one."""
        ours, true = claimed_counts(claimed), true_counts(truth)
        return (ours & true).total() / max(ours.total(), true.total())

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Sum over classes of E[min(Binomial(|D|, 1/n), count)] / |D|."""
        from scipy.special import betainc

        true = true_counts(truth)
        size = true.total()
        # E[min(X, c)] = sum_{k < c} P(X > k), and P(X > k) = I_p(k + 1, n - k) (DLMF 8.17.5)
        k = np.arange(max(true.values()))
        above = betainc(k + 1, size - k, 1 / spec.classes).tolist()
        overlap = sum(above[k] for count in true.values() for k in range(count))
        return float(overlap / size)


class LabelF1(Metric):
    """Balance of labels found and labels wrongly claimed; 100 % is all and no more.

    F1 score of the set of claimed labels.
    """

    name = "label_f1"
    keywords = ("label set", "label recovery", "F-score")
    fields = _SETS
    shown = Measure("Label F1", phrase="label F1 {share} over {n} updates", kind="share", rank=260)

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """2 |C & T| / (|C| + |T|) for the claimed set C and the true set T."""
        ours, true = _sets(claimed, truth)
        return 2 * len(ours & true) / (len(ours) + len(true))

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Sum over c of P(|D| draws have c different labels) 2 c m / n / (c + m), for |T| = m.

        Which c labels they are is uniform, so that c m / n of them occur on average.
        """
        true = true_counts(truth)
        m, n = len(true), spec.classes
        probabilities = _different(true.total(), n)
        c = np.arange(len(probabilities))
        return float(probabilities @ (2 * c * m / n / (c + m)))


class LabelPrecision(Metric):
    """Share of the labels named that do occur, repetitions aside."""

    name = "label_precision"
    keywords = ("label set", "label recovery")
    fields = _SETS
    shown = Measure(
        "Label precision",
        phrase="{share} of the labels named for {n} updates occur",
        kind="share",
        detail=True,
        rank=300,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """|C & T| / |C| for the claimed set C and the true set T; 0 if C is empty."""
        ours, true = _sets(claimed, truth)
        return len(ours & true) / len(ours) if ours else 0.0

    def chance(self, truth: Truth, spec: Spec) -> float:
        """The share of classes that occur: every guessed label is correct with this probability."""
        return len(true_counts(truth)) / spec.classes


class LabelRecall(Metric):
    """Share of the labels that occur which were named, repetitions aside."""

    name = "label_recall"
    keywords = ("label set", "label recovery")
    fields = _SETS
    shown = Measure(
        "Label recall",
        phrase="{share} of the labels that occur in {n} updates named",
        kind="share",
        detail=True,
        rank=290,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """|C & T| / |T| for the claimed set C and the true set T."""
        ours, true = _sets(claimed, truth)
        return len(ours & true) / len(true)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Probability that |D| draws hit one given class: 1 - (1 - 1/n)^|D|."""
        return 1 - (1 - 1 / spec.classes) ** true_counts(truth).total()


class LabelExact(Metric):
    """Updates whose labels were recovered completely, without a mistake."""

    name = "label_exact"
    keywords = ("exact match", "label recovery")
    fields = _COUNTS
    shown = Measure(
        "All labels right",
        phrase="labels of {hits} of {n} updates recovered",
        kind="yes/no",
        rank=250,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """1 if every label is correct with its multiplicity, else 0."""
        return float(claimed_counts(claimed) == true_counts(truth))

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Multinomial probability of the true multiset under |D| uniform draws."""
        true = true_counts(truth)
        size = true.total()
        log = math.lgamma(size + 1) - sum(math.lgamma(n + 1) for n in true.values())
        return math.exp(log - size * math.log(spec.classes))


class LabelSetExact(Metric):
    """Updates whose set of labels was named without a mistake."""

    name = "label_set_exact"
    keywords = ("exact match", "label set", "label recovery")
    fields = ("label_set",)
    shown = Measure(
        "Label set right",
        phrase="label set of {hits} of {n} updates recovered",
        kind="yes/no",
        detail=True,
        rank=270,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """1 if the set of labels is correct, repetitions aside, else 0."""
        ours, true = _sets(claimed, truth)
        return float(ours == true)

    def chance(self, truth: Truth, spec: Spec) -> float:
        """Probability that |D| uniform draws have exactly the true set of m labels.

        A Markov chain over the number k of labels drawn so far: a draw keeps k with probability
        k / n, raises it by 1 with probability (m - k) / n, and fails otherwise.
        """
        true = true_counts(truth)
        m, n = len(true), spec.classes
        step = np.diag(np.arange(m + 1) / n) + np.diag((m - np.arange(m)) / n, k=1)
        return float(np.linalg.matrix_power(step, true.total())[0, m])


class LengthError(Metric):
    """Distance of the claimed from the true number of labels."""

    name = "length_error"
    keywords = ("batch size", "number of labels")
    fields = ("num_labels",)
    shown = Measure(
        "Length error",
        phrase="number of labels {value} off over {n} updates",
        lower=True,
        detail=True,
        rank=280,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """|claimed number - true number|, both with multiplicity."""
        # `Metric.score` has checked that a number is claimed.
        return float(abs((claimed.num_labels or 0) - _length(truth)))

    def chance(self, truth: Truth, spec: Spec) -> float:
        """E|U - |D|| for U uniform over 1 to n, the ranks that a head's gradient can have."""
        length = _length(truth)
        return sum(abs(k - length) for k in range(1, spec.classes + 1)) / spec.classes


class Hellinger(Metric):
    """Distance of the claimed and true shares of the labels; 0 is the same, 1 is disjoint."""

    name = "hellinger"
    keywords = ("label distribution", "distance")
    fields = _COUNTS
    shown = Measure(
        "Hellinger distance",
        phrase="Hellinger distance of label shares {value} over {n} updates",
        lower=True,
        detail=True,
        most=1.0,
        rank=310,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """sqrt(sum over classes of (sqrt p - sqrt q)^2 / 2) for claimed shares p and true shares q.

        1 if nothing is claimed.
        """
        ours, true = claimed_counts(claimed), true_counts(truth)
        if not ours:
            return 1.0
        claimed_total, total = ours.total(), true.total()  # once: a claim may have many classes
        squares = sum(
            (math.sqrt(ours[k] / claimed_total) - math.sqrt(true[k] / total)) ** 2
            for k in ours.keys() | true.keys()
        )
        return math.sqrt(squares / 2)


class LabelCorrelation(Metric):
    """How well scores of the labels follow their true counts (Pearson's r, sign aside).

    LLG, figure 3c. The metric is not defined if every class occurs equally often.
    """

    name = "label_correlation"
    keywords = ("label distribution", "Pearson")
    fields = ("label_scores",)
    shown = Measure(
        "Label correlation",
        phrase="label scores correlate {value} with the true counts over {n} updates",
        detail=True,
        most=1.0,
        rank=320,
    )

    def compute(self, claimed: Reconstruction, truth: Truth, spec: Spec) -> float:
        """|Pearson's r| over the classes, in float64.

        NaN if every class occurs equally often; 0 for scores that are constant or hold NaN or Inf.
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
        counts = true_counts(truth)
        if len({counts[k] for k in range(spec.classes)}) == 1:
            return math.nan
        m = spec.classes - 1
        return math.exp(math.lgamma(m / 2) - math.lgamma((m + 1) / 2)) / math.sqrt(math.pi)

    def suits(self, spec: Spec) -> bool:
        """Tasks with at least three classes, since two points always lie on a line."""
        return spec.classes > 2
