"""dager where noise hides everything: it says so."""

import dataclasses

import pytest
import torch
from test_dager import claimed, seen, small


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
    with pytest.raises(ValueError, match="stands out above its noise"):
        claimed(dataclasses.replace(observed, gradient=gradient))
