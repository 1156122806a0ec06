"""Every purpose has its own randomness, and the global generators are left alone."""

import contextlib
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedsim import seeds
from fedsim.seeds import (
    derive,
    deterministic,
    held,
    isolated,
    numpy_generator,
    torch_generator,
)

places = st.lists(st.integers(0, 99) | st.text("abc|:,0", max_size=3), max_size=3)


def state():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@given(st.integers(), st.text(max_size=5), places)
def test_a_seed_is_a_pure_function_that_fits_63_bits(seed, purpose, where):
    value = derive(seed, purpose, *where)
    assert 0 <= value < 2**63
    assert value == derive(seed, purpose, *where)


def test_known_values_never_change():
    # A recorded run is repeated from its seed alone: these numbers are part of the format.
    assert derive(7, "batch", 3, 17) == 7190021103130201382
    assert derive(0, "model") != derive(0, "batch")


@given(places, places)
def test_other_places_have_other_seeds(one, other):
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (derive(0, "p", *one) == derive(0, "p", *other)) == same


def test_generators_repeat_whatever_was_drawn_before():
    first = torch.rand(3, generator=torch_generator(1, "a", 2))
    torch.rand(100)
    assert torch.equal(first, torch.rand(3, generator=torch_generator(1, "a", 2)))
    assert not torch.equal(first, torch.rand(3, generator=torch_generator(1, "a", 3)))
    assert numpy_generator(1, "a").random() == numpy_generator(1, "a").random()
    assert numpy_generator(1, "a").random() != numpy_generator(2, "a").random()


def test_isolation_repeats_inside_and_changes_nothing_outside():
    before = state()
    with isolated(3, "attack"):
        first = draws()
    assert state() == before
    draws()
    with isolated(3, "attack"):
        assert draws() == first
    with isolated(4, "attack"):
        assert draws() != first


def test_isolation_puts_back_what_an_exception_left():
    def fail():
        with isolated(3, "attack"):
            draws()
            torch.manual_seed(0)
            raise RuntimeError

    before = state()
    with pytest.raises(RuntimeError):
        fail()
    assert state() == before


def test_isolation_covers_more_than_generators(tmp_path):
    def state():
        return (
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            os.getcwd(),
        )

    before = state()
    with isolated(1, "vandal"):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True)
        os.chdir(tmp_path)
    assert state() == before


def test_isolation_while_the_states_are_held_draws_the_same_and_the_end_restores_them():
    with isolated(3, "client", 1):
        first = draws()
        with isolated(4, "inner"):
            inner = draws()
        second = draws()
    before = state()
    with held():
        for _ in range(2):
            with isolated(3, "client", 1):
                assert draws() == first
                with isolated(4, "inner"):  # must leave the outer block's random numbers alone
                    assert draws() == inner
                assert draws() == second
    assert state() == before
    with pytest.raises(KeyError), held(), isolated(3, "client", 1):
        raise KeyError
    assert state() == before
    with isolated(3, "client", 1):
        draws()
    assert state() == before, "isolation saves again after the block"


@pytest.mark.parametrize("wanted", [True, False])
def test_a_gpu_sums_in_the_same_order_inside_if_that_is_wanted(monkeypatch, wanted):
    monkeypatch.setattr(seeds, "_devices", lambda: [0])
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    monkeypatch.setattr(seeds, "_deterministic", True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    deterministic(wanted)
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) == wanted

    def chosen():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.allow_tf32,
        )

    before = chosen()
    with isolated(1, "training"):
        assert chosen() == (wanted, wanted, wanted, False)
        with isolated(1, "attack"):
            assert chosen() == (wanted, wanted, wanted, False)
    assert chosen() == before


GENERATOR = "generator" in (torch.rand_like.__doc__ or "")
"""Whether `rand_like` takes one: PyTorch 2.9's does not."""


@pytest.mark.parametrize(
    "draw", [torch.rand, torch.randn, *([torch.rand_like] if GENERATOR else []), torch.randperm]
)
def test_a_large_seed_fills_generators_that_take_32_bits(draw):
    """Or whoever sees a client's noise finds its generator with 2**32 guesses."""
    asked = {torch.rand_like: torch.empty(40), torch.randperm: 40}.get(draw, 40)

    def drawn(seed):
        generator = torch_generator(seed, "noise")
        with isolated(seed, "noise"):
            return draw(asked, generator=generator), draw(asked), np.random.rand(40)

    def by_32_bits(seed):
        low = derive(seed, "noise") % 2**32
        torch_rng = torch.Generator().manual_seed(low)
        return draw(asked, generator=torch_rng), np.random.RandomState(low).rand(40)

    small, large = drawn(7), drawn(2**32 + 7)
    for found, again in zip(large, drawn(2**32 + 7), strict=True):
        assert np.array_equal(found, again)
    assert torch.equal(small[0], by_32_bits(7)[0])
    assert np.array_equal(small[2], by_32_bits(7)[1])
    assert not torch.equal(large[0], by_32_bits(2**32 + 7)[0])
    assert torch.equal(large[0], large[1])  # of the global generator
    assert not np.array_equal(large[2], by_32_bits(2**32 + 7)[1])


def test_a_filled_generator_draws_evenly():
    values = torch.rand(200_000, generator=torch_generator(2**62, "even"))
    assert abs(float(values.mean()) - 0.5) < 0.003
    assert abs(float(values.var()) - 1 / 12) < 0.001
    assert len(values.unique()) > 195_000


def test_threads_are_set_again_only_where_they_were_changed(monkeypatch):
    before, given = torch.get_num_threads(), []
    setting = torch.set_num_threads
    monkeypatch.setattr(torch, "set_num_threads", lambda n: (given.append(n), setting(n)))
    with isolated(1, "client"):
        pass
    assert given == []
    with isolated(1, "attack"):
        torch.set_num_threads(before + 1)
    assert given == [before + 1, before]
    assert torch.get_num_threads() == before
