"""Numerical rank: one place counts singular values, for every attack."""

import numpy as np
import pytest
import torch

from fedsim.gradients import (
    filled_sides,
    gap_ratios,
    noise_threshold,
    numerical_rank,
    rank_above,
    rank_of,
    rounding,
    weight_rounding,
)


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


@pytest.mark.parametrize("sent", [torch.bfloat16, torch.float32])
def test_what_rounding_of_sent_weights_leaves_is_as_large_as_said(sent, rng):
    before = torch.randn(200, 100, generator=rng).to(sent)
    before[0] = 0
    gradient = 3 * torch.randn(before.shape, generator=rng, dtype=torch.float64)
    after = (before.double() - 0.1 * gradient).to(sent)
    off = (before.double() - after.double()) / 0.1 - gradient
    said = weight_rounding(after, 0.1)
    assert 0.9 < float((off / said).square().mean().sqrt()) < 1.1
    assert not weight_rounding(torch.zeros(3), 0.1).any()


def low_rank(rank, rows, columns, rng):
    left = torch.randn(rows, rank, generator=rng, dtype=torch.float64)
    return (left @ torch.randn(rank, columns, generator=rng, dtype=torch.float64)).float()


@pytest.mark.parametrize("sent", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_the_format_that_was_sent_is_recognised_in_float32(sent, scale, rng):
    matrix = scale * low_rank(7, 60, 90, rng)
    assert rank_of(matrix.to(sent).float()) == 7


@pytest.mark.parametrize("level", [1e-7, 1e-6, 1e-4, 1e-2])
@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (200, 40)])
def test_noise_of_any_level_is_not_counted(level, shape, rng):
    matrix = low_rank(7, *shape, rng)
    noise = level * float(matrix.std()) * torch.randn(shape, generator=rng)
    assert rank_of(matrix + noise) == 7


def test_rows_and_columns_of_zeros_are_no_sides(rng):
    matrix = torch.zeros(50, 70)
    matrix[5:25, 10:50] = low_rank(4, 20, 40, rng) + 1e-3 * torch.randn(20, 40, generator=rng)
    assert filled_sides(matrix) == (20, 40)
    assert rank_of(matrix) == 4


def test_values_that_were_not_computed_count_as_zero():
    values = np.array([8.0, 4.0, 1e-3])
    assert numerical_rank(values, (50, 60), 1e-2) == 2
    assert numerical_rank(values, (50, 60), 1e-2, noisy=True) == 2


def test_errors_of_sums_are_beyond_those_of_what_was_sent(rng):
    matrix = low_rank(5, 60, 90, rng)
    assert rounding(matrix, sums=False) < rounding(matrix) / 4
    sixteen = matrix.bfloat16().float()
    assert rounding(sixteen, sums=False) == rounding(sixteen) > 1000 * rounding(matrix)


@pytest.mark.parametrize("level", [1e-7, 1e-6, 1e-5])
@pytest.mark.parametrize(("rank", "shape"), [(60, (128, 330)), (121, (128, 330)), (57, (60, 90))])
def test_a_rank_near_the_full_one_shows_under_weak_noise(level, rank, shape, rng):
    matrix = low_rank(rank, *shape, rng)
    assert rank_of(matrix + level * float(matrix.std()) * torch.randn(shape, generator=rng)) == rank


def test_values_that_sink_to_rounding_are_no_noise_beyond_the_first():
    """Of an untrained encoder the first value is far above the others, which sink for long."""
    sinking = np.append(1.0, np.geomspace(1 / 150, 3e-8, 23))
    values = np.append(sinking, np.geomspace(4e-9, 1e-9, 40))
    assert values[0] / values[1] > 100
    assert numerical_rank(values, (64, 192), 2.5e-8) == 24


@pytest.mark.parametrize("shape", [(5, 7), (0, 7), (7, 0)])
def test_nothing_has_rank_zero(shape):
    assert rank_of(torch.zeros(shape)) == 0


def test_a_full_rank_cannot_be_distinguished_from_noise_and_counts_too_low(rng):
    assert rank_of(low_rank(29, 60, 30, rng)) == 29
    assert rank_of(low_rank(30, 60, 30, rng)) < 30


@pytest.mark.parametrize("rank", [1, 5, 20, 29])
def test_the_rank_of_a_product_is_found(rank):
    rng = torch.Generator().manual_seed(rank)
    factors = (torch.randn(n, rank, generator=rng).double() for n in (60, 30))
    matrix = (next(factors) @ next(factors).mT).float()
    assert rank_of(matrix) == rank
    assert rank_of(matrix.mT) == rank


@pytest.mark.parametrize("transposed", [False, True])
def test_a_matrix_of_many_blocks_has_the_norms_of_its_rows_and_columns(transposed, rng):
    matrix = torch.randn(3000, 101, generator=rng)
    matrix = matrix.T if transposed else matrix
    longest = sum(float(matrix.double().norm(dim=dim).max()) for dim in (0, 1))
    unit = torch.finfo(torch.float32).eps / 2
    assert rounding(matrix) == pytest.approx(4 * unit * longest, rel=1e-12)
