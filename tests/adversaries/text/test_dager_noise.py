"""dager and noise: told from what was fed, at whatever level it lies."""

import dataclasses

import pytest
import torch
from test_dager import claimed, seen, small

from adversaries.text.dager.first_layers import spanned
from fedsim.gradients import rounding


@pytest.mark.parametrize("hidden", ["attention.self", "attention.output"])
def test_a_gradient_that_is_noise_alone_is_refused_and_not_searched(hidden):
    observed, _ = seen(small())
    rng = torch.Generator().manual_seed(1)
    gradient = {
        name: torch.randn(value.shape, generator=rng) if hidden in name else value
        for name, value in observed.gradient.items()
    }
    if hidden == "attention.output":  # every later layer, lest another one tells
        gradient |= {
            name: torch.randn(value.shape, generator=rng)
            for name, value in observed.gradient.items()
            if "attention.self" not in name or ".layer.0." not in name
        }
    with pytest.raises(ValueError, match="exceeds its noise, so that no token can be found"):
        claimed(dataclasses.replace(observed, gradient=gradient))


@pytest.mark.parametrize("level", [0.1, 1.0, 1.5, 2.0, 100.0])
def test_a_level_of_noise_is_left_out_wherever_it_lies(level):
    rng = torch.Generator().manual_seed(2)
    width, inputs = 64, 7
    fed = torch.linalg.qr(torch.randn(width, inputs, generator=rng, dtype=torch.float64)).Q
    felt = torch.randn(3 * width, inputs, generator=rng, dtype=torch.float64)
    clean = (felt @ fed.mT).float().double()
    noise = torch.randn(clean.shape, generator=rng, dtype=torch.float64)
    noise *= level * rounding(clean) / float(torch.linalg.matrix_norm(noise, ord=2))
    found = spanned(["layer"], {"layer.weight": (clean + noise).float()}, turned=False)
    assert found.rank == inputs, "of 64, of which rounding's threshold would count some or all"
    assert found.noisy == (level > 1)
    assert float(found.off(fed.mT).max()) < 1e-3


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ({"lengths": [7]}, r"7 tokens at most are behind it, and noise"),
        ({"num_examples": 1}, r"64 tokens at most are behind it, and noise"),
        ({"num_examples": 2}, r"at least \d+ tokens may be behind it, or noise"),
        ({}, r"at least \d+ tokens may be behind it, or noise"),
        ({"lengths": [60, 60]}, r"120 tokens are behind it"),
    ],
)
def test_a_full_gradient_is_not_blamed_on_more_tokens_than_there_can_be(known, told):
    observed, _ = seen(small(), **known)
    tokens = dataclasses.replace(observed.spec.tokens, longest=64)
    spec = dataclasses.replace(observed.spec, tokens=tokens)
    rng = torch.Generator().manual_seed(1)
    filled = {  # all dimensions, by what is not white
        name: value
        if value.ndim < 2
        else torch.randn(value.shape, generator=rng) * torch.logspace(0, -4, value.shape[1])
        for name, value in observed.gradient.items()
    }
    with pytest.raises(ValueError, match=told) as refused:
        claimed(dataclasses.replace(observed, gradient=filled, spec=spec))
    assert ("at least" in str(refused.value)) == ("at least" in told)
