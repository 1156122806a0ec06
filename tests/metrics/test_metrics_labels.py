"""Precision, recall, distributions and scores of labels: known answers, chance, undefined cases."""

import math
import time
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsim.metrics import METRICS, applicable, baselines, labels
from fedsim.records import Reconstruction, Spec, Truth
from fedsim.report.intervals import interval
from fedsim.scenario import Scenario

SPEC = Spec(classes=4)
counts = st.dictionaries(st.integers(0, 3), st.integers(1, 4), min_size=1, max_size=4)


def labelled(labels) -> Truth:
    return Truth(labels=torch.tensor(sorted(Counter(labels).elements())))


def scored(name: str, claimed: Reconstruction, truth: Truth, spec: Spec = SPEC) -> float:
    return METRICS[name].score(claimed, truth, spec)


def scores(*values: float) -> Reconstruction:
    return Reconstruction(label_scores=torch.tensor(values))


# Sets


@pytest.mark.parametrize(
    ("claimed", "true", "precision", "recall"),
    [
        ({0, 1}, [0, 1], 1, 1),
        ({0, 1, 2, 3}, [0, 0, 1], 0.5, 1),  # claiming everything costs precision
        ({0}, [0, 1, 2, 3], 1, 0.25),  # claiming little costs recall
        ({2, 3}, [0, 1], 0, 0),
        (set(), [0, 1], 0, 0),
    ],
)
def test_precision_and_recall_have_known_answers(claimed, true, precision, recall):
    by_set = Reconstruction(label_set=frozenset(claimed))
    by_counts = Reconstruction(label_counts=dict.fromkeys(claimed, 7))
    for one in (by_set, by_counts):
        assert scored("label_precision", one, labelled(true)) == precision
        assert scored("label_recall", one, labelled(true)) == recall


@pytest.mark.parametrize(
    "name", ["asr", "label_f1", "label_precision", "label_recall", "label_exact"]
)
def test_several_values_for_each_label_claim_nothing(name):
    one_hot = Reconstruction(labels=torch.nn.functional.one_hot(torch.tensor([1, 0]), 4))
    assert scored(name, one_hot, labelled([0, 1])) == 0
    column = Reconstruction(labels=torch.tensor([[1], [0]]))
    assert scored(name, column, labelled([0, 1])) == 1


@given(counts, counts)
@settings(max_examples=50, deadline=None)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(claimed, true):
    one, truth = Reconstruction(label_counts=claimed), labelled(true)
    p, r, f1 = (scored(f"label_{n}", one, truth) for n in ("precision", "recall", "f1"))
    assert f1 == pytest.approx(2 * p * r / (p + r) if p + r else 0)


@pytest.mark.parametrize("name", ["label_precision", "label_recall", "label_f1"])
@pytest.mark.parametrize("true", [[0], [0, 1], [0, 0, 0, 1], [0, 1, 2, 3]])
def test_chance_of_sets_in_closed_form_is_what_random_guesses_score(name, true):
    truth = labelled(true)
    rng = torch.Generator().manual_seed(0)
    guesses = torch.randint(4, (4000, len(true)), generator=rng).tolist()
    drawn = torch.tensor(
        [scored(name, Reconstruction(label_counts=Counter(one)), truth) for one in guesses]
    )
    error = float(drawn.std()) / len(guesses) ** 0.5
    closed = METRICS[name].chance(truth, SPEC)
    assert float(drawn.mean()) == pytest.approx(closed, abs=4 * error + 1e-6)


# Distributions


@pytest.mark.parametrize(
    ("claimed", "true", "distance"),
    [
        ({0: 2, 1: 1}, [0, 0, 1], 0),
        ({0: 4, 1: 2}, [0, 0, 1], 0),  # shares, not counts
        ({2: 1}, [0, 1], 1),
        ({}, [0, 1], 1),
        ({0: 1}, [0, 1], math.sqrt(1 - math.sqrt(1 / 2))),
        ({0: 9, 1: 16}, [0] * 16 + [1] * 9, math.sqrt(1 - 24 / 25)),
    ],
)
def test_hellinger_has_known_answers(claimed, true, distance):
    one, truth = Reconstruction(label_counts=claimed), labelled(true)
    assert scored("hellinger", one, truth) == pytest.approx(distance, abs=1e-12)


@given(counts, counts)
@settings(max_examples=50, deadline=None)
def test_hellinger_is_symmetric_and_lies_between_0_and_1(claimed, true):
    there = scored("hellinger", Reconstruction(label_counts=claimed), labelled(true))
    back = scored("hellinger", Reconstruction(label_counts=true), labelled(claimed))
    assert there == pytest.approx(back)
    assert 0 <= there <= 1 + 1e-12
    share = {k: n / sum(claimed.values()) for k, n in claimed.items()}
    same = share == {k: n / sum(true.values()) for k, n in true.items()}
    assert (there == 0) == same


def test_hellingers_chance_is_drawn_and_lies_between_the_ends():
    task = Scenario.parse({"task": {"name": "images"}, "training": {"clients": 4}}).build_task()
    truth = task.truth([0], 1, batch_size=8, steps=1)
    chance, informed = baselines(METRICS["hellinger"], truth, task.spec, task.guess, 0)
    assert 0.2 < chance < 0.9
    assert 0.2 < informed < 0.9


# Scores


def test_correlation_has_known_answers():
    truth = labelled([0, 0, 0, 1, 2])
    assert scored("label_correlation", scores(3, 1, 1, 0), truth) == pytest.approx(1)
    assert scored("label_correlation", scores(-7, -3, -3, -1), truth) == pytest.approx(1)
    assert scored("label_correlation", scores(1, 2, 0, 1), truth) == pytest.approx(
        abs(float(torch.corrcoef(torch.tensor([[1.0, 2, 0, 1], [3, 1, 1, 0]]))[0, 1]))
    )


@given(counts, st.floats(-1e150, 1e150).filter(lambda f: abs(f) > 1e-150))
@settings(max_examples=40, deadline=None)
def test_correlation_needs_no_units_and_no_sign(true, factor):
    values = torch.tensor([0.3, -1.0, 2.5, 0.1], dtype=torch.float64)
    truth = labelled(true)
    one, other = (
        scored("label_correlation", Reconstruction(label_scores=values * f), truth)
        for f in (1.0, factor)
    )
    if len({Counter(true)[k] for k in range(4)}) == 1:
        assert math.isnan(one)
        assert math.isnan(other)
    else:
        assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize(
    "silent",
    [(1, 1, 1, 1), (0, 0, 0, 0), (0.1, 0.1, 0.1, 0.1), (1, math.nan, 0, 0), (1, math.inf, 0, 0)],
)
def test_scores_that_say_nothing_correlate_with_nothing(silent):
    assert scored("label_correlation", scores(*silent), labelled([0, 1, 1])) == 0


def test_correlation_is_not_defined_where_every_class_is_as_frequent():
    truth = labelled([0, 1, 2, 3] * 2)
    assert math.isnan(scored("label_correlation", scores(3, 1, 2, 0), truth))
    assert math.isnan(METRICS["label_correlation"].chance(truth, SPEC))


def test_correlation_wants_a_score_a_class_and_three_classes():
    with pytest.raises(ValueError, match=r"shape \(3,\), expected \(4,\)"):
        scored("label_correlation", scores(1, 2, 3), labelled([0]))
    assert applicable({"label_scores"}, Spec(classes=2)) == []
    assert [m.name for m in applicable({"label_scores"}, SPEC)] == ["label_correlation"]


@pytest.mark.parametrize("classes", [3, 4, 10, 100])
def test_chance_of_a_correlation_is_what_random_scores_reach(classes):
    spec, truth = Spec(classes=classes), labelled([0, 0, 1])
    rng = torch.Generator().manual_seed(classes)
    drawn = torch.tensor(
        [
            scored("label_correlation", Reconstruction(label_scores=one), truth, spec)
            for one in torch.randn(3000, classes, generator=rng)
        ]
    )
    error = float(drawn.std()) / len(drawn) ** 0.5
    closed = METRICS["label_correlation"].chance(truth, spec)
    assert float(drawn.mean()) == pytest.approx(closed, abs=4 * error)


def test_a_task_guesses_scores_from_public_frequencies():
    task = Scenario.parse({"task": {"name": "images"}, "training": {"clients": 4}}).build_task()
    truth = task.truth([0], 1, batch_size=8, steps=1)
    chance, informed = baselines(METRICS["label_correlation"], truth, task.spec, task.guess, 0)
    assert chance == pytest.approx(0.2734, abs=1e-4)
    assert 0 <= informed <= 1


def test_hellinger_of_many_claimed_labels_takes_no_time():
    started = time.monotonic()
    claim = Reconstruction(label_counts=dict.fromkeys(range(50_000), 1))
    assert scored("hellinger", claim, labelled({0: 1})) == pytest.approx(1, abs=0.01)
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("name", ["length_error", "label_correlation"])
def test_labels_are_counted_once_for_a_chance_level_however_many_classes_there_are(
    monkeypatch, name
):
    counted = []
    plain = labels.true_counts
    monkeypatch.setattr(labels, "true_counts", lambda one: counted.append(1) or plain(one))
    assert METRICS[name].chance(Truth(labels=torch.tensor([1, 1, 2])), Spec(50, (4,))) > 0
    assert len(counted) == 1


@pytest.mark.parametrize("name", ["hellinger", "label_correlation"])
def test_intervals_of_what_lies_between_0_and_1_do_too(name):
    assert interval([1.0, 1.0, 0.7], METRICS[name].shown) == (pytest.approx(0.47, abs=0.01), 1.0)
    assert interval([0.0, 0.0, 0.3], METRICS[name].shown) == (0.0, pytest.approx(0.53, abs=0.01))
