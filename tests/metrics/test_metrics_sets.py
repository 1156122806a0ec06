"""Whether the set of labels is right, and how far off their number is: answers and chance."""

from itertools import product

import pytest
import torch

from fedsim.metrics import METRICS
from fedsim.records import Reconstruction, Spec, Truth


@pytest.mark.parametrize(
    ("claimed", "labels", "exact"),
    [({0, 2}, [0, 2, 2], 1), ({0}, [0, 2], 0), ({0, 1, 2}, [0, 2], 0), (set(), [0], 0)],
)
def test_the_set_is_right_or_not(claimed, labels, exact):
    truth = Truth(labels=torch.tensor(labels))
    claim = Reconstruction(label_set=frozenset(claimed))
    assert METRICS["label_set_exact"].score(claim, truth, Spec(classes=4)) == exact


@pytest.mark.parametrize("labels", [[0], [0, 1], [1, 1, 2], [0, 1, 2, 2]])
def test_chance_of_the_set_is_the_share_of_all_draws_that_have_it(labels):
    truth, n = Truth(labels=torch.tensor(labels)), 3
    draws = list(product(range(n), repeat=len(labels)))
    expected = sum(set(draw) == set(labels) for draw in draws) / len(draws)
    chance = METRICS["label_set_exact"].chance(truth, Spec(classes=n))
    assert chance == pytest.approx(expected)


def test_the_length_error_counts_repetitions_and_all_sequences():
    metric, claim = METRICS["length_error"], Reconstruction(num_labels=5)
    assert metric.score(claim, Truth(labels=torch.tensor([1, 1, 1])), Spec(classes=4)) == 2
    both = Truth(sequences=[torch.tensor([1, 2, 3]), torch.tensor([4, 4, 4, 4])])
    assert metric.score(claim, both, Spec(classes=9)) == 2


def test_chance_of_the_length_is_a_number_from_one_to_the_classes():
    truth = Truth(labels=torch.tensor([0, 1, 1]))
    chance = METRICS["length_error"].chance(truth, Spec(classes=4))
    assert chance == pytest.approx((2 + 1 + 0 + 1) / 4)
