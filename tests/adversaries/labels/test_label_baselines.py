"""The baselines of the label attacks: the min-column rule, signs, and a random guess."""

import dataclasses

import pytest
import torch

from adversaries import LLG, BiasSigns, MinColumn, RandomGuess
from fedsim import testing
from fedsim.errors import NotGranted
from fedsim.knowledge import Knowledge
from fedsim.metrics import METRICS
from fedsim.records import Observation, Truth

HEAD = torch.tensor(
    [
        [0.2, 0.1, 0.4],
        [0.3, -0.9, 0.8],  # lowest entry of all, positive sum
        [-0.3, -0.3, -0.3],
        [-0.1, 0.2, -0.2],  # negative sum
        [0.1, 0.6, -0.01],
    ]
)


def seen(size: int | None = None, bias: list[float] | None = None) -> Observation:
    gradient = {"out.fc.weight": HEAD}
    if bias is not None:
        gradient["out.fc.bias"] = torch.tensor(bias)
    return testing.observation(gradient=gradient, head="out.fc", num_examples=size)


@pytest.mark.parametrize(
    ("size", "labels"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 3, 4])]
)
def test_min_column_ranks_classes_by_their_lowest_entry(size, labels):
    claimed = MinColumn().reconstruct(seen(size), testing.job())
    assert claimed.labels.tolist() == labels
    assert claimed.label_set == set(labels)
    assert claimed.label_counts == dict.fromkeys(labels, 1)
    assert claimed.diagnostics == {}


def test_min_column_claims_every_class_once_of_more_examples_than_classes():
    claimed = MinColumn().reconstruct(seen(12), testing.job())
    assert claimed.labels.tolist() == [0, 1, 2, 3, 4]
    assert "12 examples have repeats" in claimed.diagnostics["note"]


def test_min_column_by_sign_claims_every_class_that_reaches_below_zero():
    attack = MinColumn(rule="negative")
    claimed = attack.reconstruct(seen(), testing.job())
    assert claimed.label_set == {1, 2, 3, 4}
    assert attack.requires() == Knowledge.HEAD_GRADIENT
    assert Knowledge.BATCH_SIZE in MinColumn().requires()


def test_min_column_finds_labels_that_do_not_repeat_and_misses_those_that_do():
    model = testing.network(4)
    inputs = testing.batch(4, 4).inputs
    scores = []
    for labels in ([1, 3, 6, 8], [1, 1, 1, 8]):
        target = torch.tensor(labels)
        gradient = {k: g.detach() for k, g in model.gradient(inputs, target).items()}
        observed = testing.observation(gradient=gradient, num_examples=4)
        claimed = MinColumn().reconstruct(observed, testing.job())
        truth = Truth(labels=target)
        scores.append(METRICS["label_f1"].score(claimed, truth, testing.SPEC))
    assert scores[0] == 1
    assert scores[1] < 0.7


def test_signs_are_those_of_the_bias():
    observed = seen(bias=[-0.1, 0.2, 0.3, 0.0, -0.4])
    claimed = BiasSigns().reconstruct(observed, testing.job())
    assert claimed.labels.tolist() == [0, 4]
    assert claimed.label_counts == {0: 1, 4: 1}


def test_signs_of_the_weight_are_the_first_step_of_llg():
    claimed = BiasSigns(of="weight").reconstruct(seen(), testing.job())
    assert claimed.label_set == {2, 3}
    two = LLG().reconstruct(seen(2), testing.job())
    assert two.label_set == claimed.label_set


@pytest.mark.parametrize("of", ["bias", "weight"])
def test_what_signs_claim_is_in_the_batch(of):
    for seed in range(20):
        observed = testing.example(12, seed)
        claimed = BiasSigns(of=of).reconstruct(observed, testing.job())
        assert claimed.label_set
        assert claimed.label_set <= set(observed.labels.tolist())


def test_signs_without_a_negative_class_claim_nothing():
    claimed = BiasSigns().reconstruct(seen(bias=[0.1] * 5), testing.job())
    assert claimed.label_set == frozenset()
    assert len(claimed.labels) == 0
    assert "no class" in claimed.diagnostics["note"]


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (None, "sends no gradient of a bias.*'out.fc.bias'.*of = \"weight\""),
        ([0.0] * 5, "only zeros"),
        ([float("nan")] * 5, "NaN"),
        ([0.1] * 4, "shape \\(4,\\), expected \\(5,\\)"),
    ],
)
def test_signs_of_an_unusable_bias_are_refused(bias, message):
    with pytest.raises(ValueError, match=message):
        BiasSigns().reconstruct(seen(bias=bias), testing.job())


def test_a_random_guess_is_uniform_and_needs_the_number_of_examples_alone():
    observed = testing.observation(classes=4, num_examples=4000)
    assert observed.granted == Knowledge.BATCH_SIZE == RandomGuess().requires()
    claimed = RandomGuess().reconstruct(observed, testing.job(seed=3))
    assert sum(claimed.label_counts.values()) == len(claimed.labels) == 4000
    assert all(abs(claimed.label_counts[label] - 1000) < 150 for label in range(4))
    other = RandomGuess().reconstruct(observed, testing.job(seed=4))
    assert not torch.equal(claimed.labels, other.labels)
    with pytest.raises(NotGranted, match="BATCH_SIZE"):
        RandomGuess().reconstruct(
            dataclasses.replace(observed, granted=Knowledge(0)), testing.job()
        )


def test_a_random_guess_scores_what_the_baseline_says():
    truth = Truth(labels=torch.tensor([0, 0, 0, 1]))
    observed = testing.observation(spec=testing.SPEC, num_examples=4)
    metric = METRICS["asr"]
    scores = torch.tensor(
        [
            metric.score(
                RandomGuess().reconstruct(observed, testing.job(seed=s)), truth, observed.spec
            )
            for s in range(400)
        ]
    )
    error = float(scores.std()) / 20
    assert abs(float(scores.mean()) - metric.chance(truth, observed.spec)) < 3 * error
