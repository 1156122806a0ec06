"""Differential privacy of a whole client: bounds hold, and noise is as large as it says."""

import math

import pytest
import torch
from support.private import exposure, norm
from support.updates import drawn

from defenses import ClientDP
from fedsim.errors import ClientError
from fedsim.federation.mods import FixedClipping, LocalDP
from fedsim.privacy import epsilon
from fedsim.records import Update


def protect(defense, tensors, seed=0):
    update = Update(tensors, "delta", lr=0.1)
    return defense.protect(update, torch.Generator().manual_seed(seed), {}).tensors


# --- a clip and noise of one's own -----------------------------------------------------------


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_a_client_is_clipped_to_the_bound(size):
    update = {"a": size * drawn(50, 20), "b": size * drawn(30, seed=1)}
    clipped = protect(ClientDP(clip=0.5, noise_multiplier=0), update)
    assert norm(clipped) <= 0.5 * (1 + 1e-6)
    assert norm(clipped) == pytest.approx(min(0.5, norm(update)), rel=1e-6)
    ratios = torch.cat([(clipped[k] / update[k]).flatten() for k in update])
    torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios))  # its direction stays


def test_a_clients_noise_is_as_large_as_it_says():
    update = {"a": drawn(200, 100)}
    noisy = protect(ClientDP(clip=2.0, noise_multiplier=0.3), update)
    clipped = protect(ClientDP(clip=2.0, noise_multiplier=0), update)
    assert float((noisy["a"] - clipped["a"]).std()) == pytest.approx(0.6, rel=0.02)


# --- Flower's own ---------------------------------------------------------------------------


def test_flowers_clipping_is_a_clip():
    update = {"a": drawn(50, 20), "b": drawn(30, seed=1)}
    clipped = protect(FixedClipping(clipping_norm=0.5), update)
    assert list(clipped) == list(update)
    assert norm(clipped) == pytest.approx(0.5, rel=1e-5)
    small = {"a": 0.001 * drawn(5)}
    torch.testing.assert_close(protect(FixedClipping(clipping_norm=0.5), small), small)


def test_flowers_local_dp_adds_the_noise_of_its_formula():
    defense = LocalDP(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    update = {"a": 1e-6 * torch.ones(300, 100)}
    noisy = protect(defense, update)
    sigma = math.sqrt(2 * math.log(1.25e5)) / 10
    assert float(noisy["a"].std()) == pytest.approx(sigma, rel=0.02)
    assert torch.equal(noisy["a"], protect(defense, update)["a"])
    assert not torch.equal(noisy["a"], protect(defense, update, 1)["a"])
    with pytest.raises(ClientError, match="zero throughout"):
        protect(defense, {"a": torch.zeros(3)})
    told = defense.spent(exposure())
    assert told["epsilon"] == epsilon(sigma, 1.0, 4, 1e-5)
    assert LocalDP(sensitivity=0.1).cautions(exposure())


def test_flowers_mods_reach_parameters_without_dimensions():
    clipped = protect(FixedClipping(clipping_norm=1.0), {"s": torch.tensor(2.0), "w": drawn(3)})
    assert norm(clipped) == pytest.approx(1, rel=1e-5)
    assert clipped["s"].shape == ()
    noisy = protect(LocalDP(epsilon=5.0), {"s": torch.tensor(0.5)})
    assert float(noisy["s"]) != 0.5


def test_an_update_with_nan_is_not_sent_unclipped():
    update = Update({"a": torch.full((3,), 1e3), "b": torch.tensor([math.nan, 5.0])}, "gradient")
    private = ClientDP(clip=1.0, noise_multiplier=0.1)
    sent = private.protect(update, torch.Generator().manual_seed(0), {}).tensors
    assert norm({"a": sent["a"], "b": sent["b"][1:]}) < 1
