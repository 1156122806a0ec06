"""Gradients of sequences in factors are those of autograd, and so is their distance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.spellers import PIECES, generator, recogniser

from fedsim.gradients import FactoredGradients, leading


def test_factored_gradients_are_those_of_autograd():
    model = recogniser()
    rng = generator(2)
    contexts = torch.randn(3, 4, 16, generator=rng)
    labels = torch.rand(3, 4, PIECES, generator=rng).softmax(dim=2)
    names = [name for name in model.parameters() if name.startswith("speller.")]
    found = FactoredGradients(model, names, at="context")(contexts, labels)
    assert list(found) == names
    for row in range(3):
        one = slice(row, row + 1)
        slow = model.gradient(contexts[one], labels[one], at="context", names=names)
        for name, value in found.items():
            factored = isinstance(value, tuple)
            fast = value[0][row].mT @ value[1][row] if factored else value[row]
            assert torch.allclose(fast, slow[name], atol=1e-6), name


def test_only_layers_whose_gradients_are_outer_products_come_in_factors():
    with pytest.raises(ValueError, match="LSTM"):
        FactoredGradients(recogniser(), ["listener.levels.0.weight_ih_l0"])


@settings(max_examples=30, deadline=None)
@given(rank=st.integers(1, 4), ours=st.integers(1, 4), seed=st.integers(0, 99), near=st.booleans())
def test_the_distance_in_factors_is_the_distance(rank, ours, seed, near):
    rng = generator(seed)
    factors = (torch.randn(n, rank, generator=rng).double() for n in (7, 9))
    observed = next(factors) @ next(factors).mT
    part = leading(observed, rank, rng)
    assert torch.allclose(part.u @ torch.diag(part.s) @ part.v.mT, observed, atol=1e-10)
    left = torch.randn(2, ours, 7, generator=rng, dtype=torch.float64)
    right = torch.randn(2, ours, 9, generator=rng, dtype=torch.float64)
    if near:
        left = ((part.u * part.s).mT + 1e-7).expand(2, -1, -1)
        right = part.v.mT.expand(2, -1, -1)
    dense = (left.mT @ right - observed).square().sum(dim=(1, 2))
    assert torch.allclose(part.squared_distance((left, right)), dense, rtol=1e-6, atol=1e-24)
