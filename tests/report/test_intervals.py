"""Intervals cover what they say, stay in range, and count clusters once."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from fedsim.metric import Measure
from fedsim.report.intervals import estimate, interval
from fedsim.runs.reading import MEASURES

NUMBER = Measure("A number", "", "")
CHANGE = Measure("A change", "", "", "share", signed=True)
SHARE, YES, ERROR = MEASURES["asr"], MEASURES["recovered"], MEASURES["mse"]


@pytest.mark.parametrize("n", [3, 5, 20])
def test_the_interval_of_few_normal_values_covers_their_mean(n):
    draws = np.random.default_rng(0).normal(size=(2000, n))
    held = [low <= 0 <= high for low, high in (interval([*one], NUMBER) for one in draws)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_students_interval_has_a_known_answer():
    low, high = interval([1.0, 2.0, 3.0], NUMBER)
    half = 4.302652729911275 / math.sqrt(3)
    assert (low, high) == (pytest.approx(2 - half), pytest.approx(2 + half))
    assert interval([1.0, 2.0], NUMBER) == (None, None)
    assert interval([1.0, 2.0, math.nan], NUMBER) == (None, None)


def test_an_interval_ends_where_its_measure_does():
    assert interval([1.0, 0.9, 0.5], SHARE)[1] == 1.0
    assert interval([0.0, 0.1, 0.5], SHARE)[0] == 0.0
    assert interval([0.0, 0.001, 0.1], ERROR)[0] == 0.0
    assert interval([0.01, 0.02, 0.3], CHANGE)[0] < 0
    assert interval([0.9, 1.0, 1.4], MEASURES["wer"])[1] > 1.4
    assert interval([0.2, 1.0, 1.0], MEASURES["speaker_mrr"])[1] == 1.0
    assert interval([0.2, 0.2, 1.0], MEASURES["speaker_mrr"])[0] == 0.0
    # What a plugin's metric of the same name holds is not cut off.
    assert interval([1.5, 1.5, 1.5], SHARE) == (1.5, 1.5)


def test_wilsons_interval_is_honest_where_all_agree():
    assert interval([1.0] * 20, YES) == pytest.approx((0.8389, 1.0), abs=1e-4)


@pytest.mark.parametrize(("hits", "n"), [(1, 4), (5, 10), (9, 10), (45, 90)])
def test_of_independent_answers_the_interval_is_wilsons(hits, n):
    known = binomtest(hits, n).proportion_ci(method="wilson")
    found = interval([1.0] * hits + [0.0] * (n - hits), YES)
    assert found == pytest.approx((known.low, known.high), abs=1e-5)


def test_a_cluster_counts_once_however_many_values_it_holds():
    seeds = [seed for seed in range(4) for _ in range(10)]
    values = [float(seed) for seed in seeds]
    assert interval(values, NUMBER, clusters=seeds) == pytest.approx(
        interval([0.0, 1.0, 2.0, 3.0], NUMBER)
    )
    assert interval(values[:20], NUMBER, clusters=seeds[:20]) == (None, None)
    agreeing = [float(seed > 0) for seed in seeds]
    apart, together = interval(agreeing, YES), interval(agreeing, YES, clusters=seeds)
    assert together[1] - together[0] > 2 * (apart[1] - apart[0])


@pytest.mark.parametrize(("seeds", "each"), [(3, 20), (5, 20), (10, 10)])
def test_of_yes_and_no_on_a_few_networks_the_interval_covers_too(seeds, each):
    rng = np.random.default_rng(0)
    whose, held = [s for s in range(seeds) for _ in range(each)], 0
    for _ in range(400):
        hits = rng.binomial(each, rng.beta(1, 1, seeds))
        values = [float(i < n) for n in hits for i in range(each)]
        low, high = interval(values, YES, clusters=whose)
        held += low <= 0.5 <= high
    assert held / 400 > 0.94


def test_a_weight_is_how_often_a_value_counts():
    whole = [interval([0.0, 0.0, 1.0, 4.0], NUMBER, clusters=[0, 0, 1, 2])]
    assert whole == [interval([0.0, 1.0, 4.0], NUMBER, weights=[2.0, 1.0, 1.0])]


@pytest.mark.parametrize("seeds", [3, 5, 7])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_wilsons_interval_contains_what_all_values_are(seeds, value):
    low, high = interval([value] * 2 * seeds, YES, clusters=[*range(seeds)] * 2)
    assert (low if value == 0 else high) == value


@pytest.mark.parametrize(("value", "seeds", "each"), [(0.1, 5, 3), (0.3, 3, 14), (0.7, 5, 11)])
def test_an_interval_of_equal_values_contains_their_mean(value, seeds, each):
    values = [value] * seeds * each
    found = estimate(values, [at % seeds for at in range(len(values))], SHARE)
    assert found.low <= found.mean <= found.high
