"""A claim that is the same for every update beats no prior guess."""

import pydantic
import pytest
import torch

from fedsim import testing
from fedsim.metric import Measure, Metric
from fedsim.metrics import baselines, installed
from fedsim.metrics.fixed import fixed_claim
from fedsim.records import Reconstruction, Truth

METRICS = installed()


def guess_of(frequencies):
    """`Task.guess` of a task whose public data have these frequencies."""

    def guess(truth, rng, *, informed):
        weights = frequencies if informed else torch.ones(len(frequencies))
        labels = torch.multinomial(weights, len(truth.labels), True, generator=rng)
        return Reconstruction(
            label_set=frozenset(labels.tolist()), labels=labels, label_scores=weights
        )

    return guess


def mean(name, claim, frequencies, count, updates=400):
    """What a claim and the prior guess score on average over updates."""
    rng = torch.Generator().manual_seed(3)
    metric, spec, values, prior = METRICS[name], testing.SPEC, [], []
    for seed in range(updates):
        truth = Truth(labels=torch.multinomial(frequencies, count, True, generator=rng))
        values.append(metric.score(claim, truth, spec))
        prior.append(baselines(metric, truth, spec, guess_of(frequencies), seed)[1])
    return sum(values) / updates, sum(prior) / updates


@pytest.mark.parametrize("count", [1, 4, 16])
def test_to_name_every_class_beats_no_prior_guess(count):
    frequencies = torch.full((testing.SPEC.classes,), 1 / testing.SPEC.classes)
    every = Reconstruction(label_set=frozenset(range(testing.SPEC.classes)))
    ours, prior = mean("label_f1", every, frequencies, count)
    assert ours == pytest.approx(prior)


@pytest.mark.parametrize("name", ["asr", "label_exact"])
def test_to_name_the_most_frequent_class_beats_no_prior_guess(name):
    frequencies = torch.zeros(testing.SPEC.classes)
    frequencies[:2] = torch.tensor([0.85, 0.15])
    always = Reconstruction(labels=torch.zeros(4, dtype=torch.int64))
    ours, prior = mean(name, always, frequencies, 4)
    assert ours <= prior + 0.02


@pytest.mark.parametrize("name", ["asr", "label_exact"])
def test_where_every_claim_is_as_good_labels_are_drawn(name):
    uniform = torch.ones(testing.SPEC.classes)
    assert fixed_claim(METRICS[name], testing.SPEC, uniform, 1) is None


def test_a_metric_with_a_list_among_its_settings_has_a_prior_guess():
    class First(Metric):
        """The share of claims that are one of the first classes."""

        name = "first"
        fields = ("labels",)
        shown = Measure("First", phrase="first {value}")
        classes: list[int] = pydantic.Field(default_factory=lambda: [0, 1])

        def compute(self, claimed, truth, spec):
            return sum(label in self.classes for label in claimed.labels.tolist()) / len(
                claimed.labels
            )

    frequencies = torch.tensor([5.0, *[1.0] * (testing.SPEC.classes - 1)])
    claim = fixed_claim(First(), testing.SPEC, frequencies, 4)
    assert claim.label_set == {0}


def test_a_metric_that_reads_more_than_labels_is_compared_with_drawn_ones():
    class Both(Metric):
        """Whether as many labels as inputs are claimed."""

        name = "both"
        fields = ("labels",)
        shown = Measure("Both", phrase="both {value}")

        def compute(self, claimed, truth, spec):
            return float(len(claimed.labels) == len(truth.inputs))

    frequencies = torch.ones(testing.SPEC.classes)
    assert fixed_claim(Both(), testing.SPEC, frequencies, 4) is None
    truth = Truth(labels=torch.tensor([1, 2]), inputs=[torch.zeros(1, 2, 2)] * 2)
    assert baselines(Both(), truth, testing.SPEC, guess_of(frequencies), 0) == (1.0, 1.0)
