"""The arithmetic of masks: they cancel, tie all clients together, and numbers come back."""

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as some

from fedsim.errors import UpdateRefused
from fedsim.federation.secure import Round, masking


@given(
    some.lists(some.floats(-1e4, 1e4), min_size=1, max_size=8),
    some.integers(1, 1000),
    some.integers(2, 12),
)
def test_masks_cancel_and_numbers_come_back(values, weight, clients):
    vector = np.array(values)
    graph = masking.neighbours(range(clients))
    total = np.zeros(len(vector), dtype=np.uint64)
    for number, partners in graph.items():
        total += masking.encode(vector + number, weight, clients)
        total += masking.mask(7, 1, number, partners, len(vector))
    expected = weight * (clients * vector + clients * (clients - 1) / 2)
    np.testing.assert_allclose(masking.decode(total), expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("clients", [2, 3, 5, 8, 21, 100])
def test_masks_are_shared_with_a_few_and_tie_all_together(clients):
    graph = masking.neighbours(range(clients))
    assert all(a in graph[b] for a, partners in graph.items() for b in partners)
    assert all(a not in partners for a, partners in graph.items())
    assert {len(partners) for partners in graph.values()} == {
        min(clients - 1, 2 * masking.reach(clients))
    }
    assert masking.connected(graph, range(clients))
    assert len(graph[0]) <= 2 * np.ceil(np.log2(clients))


def test_groups_that_share_no_masks_are_told():
    graph = masking.neighbours(range(100))  # seven to either side
    assert masking.connected(graph, [0, 7, 14])
    assert not masking.connected(graph, [0, 7, 50, 57])


def test_numbers_too_large_for_the_fixed_point_are_refused():
    with pytest.raises(UpdateRefused, match="the fixed point of secure aggregation"):
        masking.encode(np.array([1e8]), 1, 6)
    assert masking.decode(masking.encode(np.array([2e7]), 1, 6))[0] == 2e7


def test_arrays_survive_being_laid_out_flat():
    shapes = {"b": (2, 3), "a": (), "c": (0, 4), "d": (1,)}
    values = {name: np.random.default_rng(0).random(shape) for name, shape in shapes.items()}
    back = masking.split(masking.flatten(values, 9.0)[1:], shapes)
    assert all(np.array_equal(back[name], values[name]) for name in shapes)


def test_the_round_survives_the_journey():
    told = Round(2**62, 3, 5, 6, (1, 2), 10**6)
    assert Round.read(ConfigRecord(dict(told.record()))) == told
