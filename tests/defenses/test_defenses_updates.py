"""What each defense is known to do to an update: noise, low precision, signs, few coordinates."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.updates import drawn, head_gradient, of, protect

from defenses import (
    QSGD,
    DeepGradientCompression,
    GaussianNoise,
    GradDrop,
    GradientMask,
    HalfPrecision,
    Int8,
    LaplacianNoise,
    Sign,
    TopK,
)
from fedsim import testing
from fedsim.defense import Defense
from fedsim.errors import PluginError
from fedsim.training import local


@pytest.fixture
def update():
    return head_gradient()


# --- noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [GaussianNoise, LaplacianNoise])
def test_noise_has_the_standard_deviation_asked_for(kind, update):
    noisy = protect(kind(sigma=0.5), update)
    noise = noisy.tensors["head.weight"] - update.tensors["head.weight"]
    assert float(noise.std()) == pytest.approx(0.5, rel=0.03)
    assert float(noise.mean()) == pytest.approx(0, abs=0.02)
    assert noisy.tensors["head.bias"].any()
    assert protect(kind(), update, 1).tensors["head.bias"].any()


def test_laplacian_noise_has_heavier_tails_than_gaussian(update):
    def kurtosis(kind):
        noisy = protect(kind(sigma=1.0), update).tensors["head.weight"]
        noise = noisy - update.tensors["head.weight"]
        return float((noise**4).mean() / (noise**2).mean() ** 2)

    assert kurtosis(GaussianNoise) == pytest.approx(3, abs=0.3)
    assert kurtosis(LaplacianNoise) == pytest.approx(6, abs=1)


# --- low precision --------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-6, 1e6))
def test_int8_errs_by_at_most_half_a_step(seed, scale):
    value = scale * drawn(3, 7, seed=seed)
    sent = protect(Int8(), of(x=value)).tensors["x"]
    step = float(value.abs().max()) / 127
    assert float((sent - value).abs().max()) <= step / 2 * (1 + 1e-4)
    units = sent / step
    assert torch.allclose(units, units.round(), atol=1e-3)
    assert units.abs().max() <= 127 * (1 + 1e-6)


def test_int8_leaves_zeros_and_knows_no_other_255_values(update):
    sent = protect(Int8(), update).tensors
    assert not sent["head.bias"].any()
    assert sent["head.weight"].unique().numel() <= 255


@pytest.mark.parametrize("defense", [Int8(rounding="stochastic"), QSGD(), QSGD(norm="max")])
def test_stochastic_rounding_is_right_in_the_mean(defense):
    value = drawn(40)
    draws = [protect(defense, of(x=value), seed).tensors["x"] for seed in range(1500)]
    spread = torch.stack(draws).std(dim=0)
    error = (torch.stack(draws).mean(dim=0) - value).abs()
    assert torch.all(error <= 5 * spread / 1500**0.5 + 1e-6)
    assert spread.max() > 0


@pytest.mark.parametrize("levels", [1, 4])
def test_qsgd_sends_few_levels(levels):
    sent = protect(QSGD(levels=levels, norm="max"), of(x=drawn(1000))).tensors["x"]
    assert sent.abs().unique().numel() <= levels + 1


def test_qsgd_sends_what_is_too_small_for_a_norm_as_it_is():
    tiny = torch.tensor([1e-24, 0, 5e-25])
    assert torch.equal(protect(QSGD(), of(x=tiny)).tensors["x"], tiny)


def test_half_precision_is_what_torch_makes_of_it_and_never_infinite():
    value = torch.tensor([1.0001, 1e-3, 1e6, -1e6])
    fp16 = protect(HalfPrecision(), of(x=value)).tensors["x"]
    bf16 = protect(HalfPrecision(format="bf16"), of(x=value)).tensors["x"]
    assert torch.equal(fp16[:2], value[:2].half().float())
    assert fp16[2:].tolist() == [65504, -65504]
    assert torch.equal(bf16, value.bfloat16().float())


# --- signs ----------------------------------------------------------------------------------


def test_signs_keep_the_mean_size_of_each_tensor(update):
    sent = protect(Sign(), update).tensors
    weight = update.tensors["head.weight"]
    assert sent["head.weight"].unique().numel() == 2
    assert torch.equal(sent["head.weight"].sign(), weight.sign())
    assert float(sent["head.weight"].abs().mean()) == pytest.approx(float(weight.abs().mean()))
    assert not sent["head.bias"].any()


def test_signs_of_a_fixed_size(update):
    sent = protect(Sign(scale=0.25), update).tensors
    assert set(sent["head.weight"].unique().tolist()) == {-0.25, 0.25}


@pytest.mark.parametrize("scale", [0, -1, "median", float("inf")])
def test_signs_refuse_an_impossible_scale(scale):
    with pytest.raises(ValidationError):
        Sign(scale=scale)


# --- few coordinates ------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), n=st.integers(1, 60), k=st.floats(0.01, 1), ties=st.booleans())
def test_top_k_keeps_exactly_k_and_the_largest(seed, n, k, ties):
    value = drawn(n, seed=seed).sign() if ties else drawn(n, seed=seed)
    sent = protect(TopK(k=k), of(x=value)).tensors["x"]
    kept = sent != 0
    assert int(kept.sum()) == max(1, round(k * n))
    assert torch.equal(sent[kept], value[kept])
    if not kept.all():
        assert value[kept].abs().min() >= value[~kept].abs().max()


@pytest.mark.parametrize(("rate", "dropped"), [(0.5, 50), (0.9, 90), (0.999, 99), (0.29, 29)])
def test_grad_drop_drops_the_share_asked_for(rate, dropped):
    sent = protect(GradDrop(rate=rate), of(x=drawn(100))).tensors["x"]
    assert int((sent == 0).sum()) == dropped


def test_counting_over_the_whole_update_may_silence_a_tensor():
    small, large = 0.01 * drawn(50), drawn(50, seed=1) + 5
    each = protect(TopK(k=0.5), of(small=small, large=large)).tensors
    both = protect(TopK(k=0.5, scope="update"), of(small=small, large=large)).tensors
    assert [int((v != 0).sum()) for v in each.values()] == [25, 25]
    assert [int((v != 0).sum()) for v in both.values()] == [0, 50]


def test_a_mask_zeroes_exactly_its_share_at_places_that_change():
    first, second = (protect(GradientMask(rate=0.75), of(x=drawn(40, 10)), s) for s in (0, 1))
    for sent in (first, second):
        assert int((sent.tensors["x"] == 0).sum()) == 300
    assert not torch.equal(first.tensors["x"] == 0, second.tensors["x"] == 0)


REMEMBERING = [
    Sign(error_feedback=True),
    TopK(k=0.1, error_feedback=True),
    GradDrop(rate=0.9, error_feedback=True),
    DeepGradientCompression(ratio=0.9, momentum=0),
]


@pytest.mark.parametrize("defense", REMEMBERING, ids=lambda d: d.name)
def test_what_was_sent_and_what_is_kept_add_up_to_all_there_was(defense):
    assert defense.remembers
    state, sent, total = {}, torch.zeros(50), torch.zeros(50)
    for round in range(6):
        value = drawn(50, seed=round)
        total += value
        sent += protect(defense, of(x=value), round, state).tensors["x"]
    (kept,) = [v for k, v in state.items() if k.endswith("x")]
    assert kept.any()
    torch.testing.assert_close(sent + kept, total, rtol=0, atol=1e-5)


def test_deep_gradient_compression_corrects_for_momentum():
    """One coordinate of two is sent a round; both columns worked out by hand from algorithm 4."""
    defense, state = DeepGradientCompression(ratio=0.5, momentum=0.5), {}
    g = torch.tensor([4.0, 1.0])
    rounds = [protect(defense, of(x=g), 0, state).tensors["x"].tolist() for _ in range(4)]
    # u = (4, 1), v = (4, 1): send 4. u = (4, 1.5), v = (4, 2.5): send 4.
    # u = (4, 1.75), v = (4, 4.25): send 4.25. u = (6, 1), v = (10 - 0, 1): send 10.
    assert rounds == [[4, 0], [4, 0], [0, 4.25], [10, 0]]


def test_deep_gradient_compression_clips_and_warms_up():
    clipped = protect(DeepGradientCompression(ratio=0, momentum=0, clip=1.0), of(x=drawn(30)))
    assert float(clipped.tensors["x"].norm()) == pytest.approx(1, abs=1e-6)
    state, defense = {}, DeepGradientCompression(ratio=0.999, momentum=0, warmup=3)
    sent = [protect(defense, of(x=drawn(1000, seed=s)), s, state).tensors["x"] for s in range(4)]
    assert [int((x != 0).sum()) for x in sent] == [100, 10, 1, 1]


class Sparse(Defense):
    """Sends sparse tensors."""

    name = "sparse"

    def protect(self, update, rng, state):
        return update.replace(tensors={k: v.to_sparse() for k, v in update.tensors.items()})


def test_sparse_tensors_are_refused_with_the_way_out(update):
    with pytest.raises(PluginError, match=r"sparse, expected a dense tensor: to_dense\(\)"):
        local.protect(update, {}, [Sparse()], (0, 1, 0), {})
    assert any("sparse, which no server reads" in one for one in testing.conformance(Sparse))
