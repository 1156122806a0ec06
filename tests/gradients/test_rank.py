"""Numerical rank: one place counts singular values, for every attack."""

import numpy as np
import pytest
import torch

from fedsim.gradients import gap_ratios, noise_threshold, rank_above, rounding


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("make", [torch.tensor, np.array])
@pytest.mark.parametrize(
    ("tolerances", "rank"),
    [({}, 3), ({"relative": 0.1}, 2), ({"absolute": 3.0}, 1), ({"absolute": 1.0}, 1)],
)
def test_the_rank_counts_the_values_above_the_larger_tolerance(make, tolerances, rank):
    values = make([4.0, 1.0, 1e-9, 0.0])
    assert rank_above(values, **tolerances) == rank


def test_no_values_are_of_rank_zero():
    assert rank_above(np.array([]), absolute=1.0) == 0


def test_values_below_rounding_do_not_fall():
    values = torch.tensor([8.0, 4.0, 1e-12, 1e-15], dtype=torch.float64)
    assert gap_ratios(values, 1e-10).tolist() == pytest.approx([2, 4e10, 1, 1])


def test_the_last_value_falls_to_rounding():
    assert gap_ratios(np.array([8.0, 4.0]), 1e-3).tolist() == pytest.approx([2, 4000])


@pytest.mark.parametrize("shape", [(40, 300), (300, 40), (128, 128)])
def test_white_noise_alone_is_below_its_threshold(shape, rng):
    values = torch.linalg.svdvals(torch.randn(shape, generator=rng, dtype=torch.float64))
    threshold = noise_threshold(shape) * float(values.median())
    assert rank_above(values, absolute=threshold) == 0
    values[0] *= 3
    assert rank_above(values, absolute=threshold) == 1


def test_what_rounding_adds_is_below_its_bound(rng):
    exact = torch.randn(60, 5, generator=rng, dtype=torch.float64)
    exact = exact @ torch.randn(5, 90, generator=rng, dtype=torch.float64)
    rounded = exact.float().double()
    values = torch.linalg.svdvals(rounded)
    assert rank_above(values) > 5
    assert rank_above(values, absolute=rounding(rounded)) == 5
