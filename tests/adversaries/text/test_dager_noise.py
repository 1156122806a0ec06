"""dager and noise: told from what was fed, at whatever level it lies."""

import dataclasses

import pytest
import torch
from test_dager import claimed, ids, seen, small

from adversaries.text.dager.row_spaces import spanned
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


@pytest.mark.parametrize(("config", "size"), [("bert", 1), ("distilbert", 2), ("gpt2", 2)])
@pytest.mark.parametrize("lr", [1.0, 0.01])
def test_texts_are_told_from_sent_weights_by_their_rounding(config, size, lr):
    observed, texts = seen(small(config), size)
    before = dict(observed.model.module.named_parameters())
    rounded = {
        name: (before[name] - (before[name] - lr * value)).detach() / lr
        for name, value in observed.gradient.items()
    }
    assert ids(claimed(dataclasses.replace(observed, gradient=rounded, divisor=lr))) == texts


def test_texts_are_told_if_the_server_averages_in_float64_and_clients_send_float32():
    observed, texts = seen(small())
    rng = torch.Generator().manual_seed(1)
    rounded = {}
    for name, held in observed.model.module.named_parameters():
        if name in observed.gradient:
            unit = 2**-24 * held.detach().double().abs()
            sent = held.detach() - 0.1 * observed.gradient[name]
            off = unit * (torch.rand(held.shape, generator=rng, dtype=torch.float64) - 0.5)
            rounded[name] = (held.detach() + off - sent.double()) / 0.1
    assert ids(claimed(dataclasses.replace(observed, gradient=rounded, divisor=0.1))) == texts


def test_noise_above_the_rounding_of_sent_weights_is_noise():
    observed, texts = seen(small("gpt2"))
    rng = torch.Generator().manual_seed(1)
    noisy = {
        name: value + 1e-4 * torch.randn(value.shape, generator=rng)
        for name, value in observed.gradient.items()
    }
    found = claimed(dataclasses.replace(observed, gradient=noisy, divisor=1.0))
    assert found.diagnostics["noisy"]
    assert ids(found) == texts
