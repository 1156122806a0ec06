"""Claimed feature vectors are matched to the true ones, and kept with the reconstruction."""

import math

import pytest
import torch

from fedsim.metrics import METRICS, misshapen
from fedsim.records import Candidates, Reconstruction, Spec, Truth
from fedsim.runs.reconstructions import from_file, to_bytes

TRUE = torch.tensor([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0]])


def scored(metric, features, truth=TRUE):
    claimed = Reconstruction(features=features)
    return METRICS[metric].score(claimed, Truth(features=truth), Spec(classes=4))


def test_vectors_in_another_order_are_all_recovered():
    assert scored("features_recovered", TRUE[[2, 0, 1]]) == 1
    assert scored("feature_error", TRUE[[2, 0, 1]]) == 0


def test_the_error_is_relative_and_that_of_a_missing_vector_is_one():
    off = TRUE[:2] + torch.tensor([[0.5, 0.0], [0.0, 0.0]])
    assert scored("feature_error", off) == pytest.approx((0.1 + 0 + 1) / 3)
    assert scored("features_recovered", off) == pytest.approx(1 / 3)


@pytest.mark.parametrize("claim", [torch.full((3, 2), math.nan), torch.ones(3, 5), TRUE[:0]])
def test_unusable_vectors_count_as_zeros(claim):
    assert scored("feature_error", claim) == 1
    assert scored("features_recovered", claim) == 0


def test_without_true_features_there_is_no_score():
    assert math.isnan(scored("feature_error", TRUE, None))


def test_features_are_kept_with_the_reconstruction(tmp_path):
    path = tmp_path / "reconstruction.safetensors"
    path.write_bytes(to_bytes(Reconstruction(features=TRUE, labels=torch.tensor([1, 2, 3]))))
    kept = from_file(path)
    assert torch.equal(kept.features, TRUE)
    assert kept.labels.tolist() == [1, 2, 3]


def retrieved(claimed, public, own=TRUE):
    """The score of a claim, of candidates with the features `public` and then `own`."""
    candidates = Candidates(public=list(public), features=torch.cat([public, own]))
    truth = Truth(features=TRUE, candidates=candidates)
    metric, claim = METRICS["feature_retrieval"], Reconstruction(features=claimed)
    return metric.score(claim, truth, Spec(classes=4)), metric.chance(truth, Spec(classes=4))


def test_an_example_is_found_if_its_candidate_is_the_nearest():
    assert retrieved(TRUE[[1, 2, 0]], torch.zeros(2, 2)) == (1, pytest.approx(1 / 5))
    assert retrieved(TRUE, TRUE[:1])[0] == pytest.approx(2 / 3), "a public twin is no evidence"
    other = TRUE + torch.tensor([[0.0, 0.0], [0.0, 0.0], [9.0, 9.0]])
    assert retrieved(TRUE, torch.zeros(1, 2), own=other)[0] == pytest.approx(2 / 3)


def test_an_example_that_nothing_was_claimed_for_is_not_found():
    assert retrieved(TRUE[:2], torch.zeros(0, 2))[0] == pytest.approx(2 / 3)
    assert retrieved(torch.full((3, 2), math.nan), torch.zeros(0, 2))[0] == 0


def test_without_candidates_nothing_is_retrieved():
    assert math.isnan(scored("feature_retrieval", TRUE))


def test_features_of_another_width_are_said():
    spec, truth = Spec(classes=2), Truth(features=torch.rand(2, 4))
    assert misshapen(Reconstruction(features=torch.rand(2, 4)), spec, truth) == ""
    said = misshapen(Reconstruction(features=torch.rand(2, 3)), spec, truth)
    assert said.startswith("features has shape (2, 3), expected (N, 4)")
