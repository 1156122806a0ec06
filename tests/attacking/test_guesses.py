"""Guesses are drawn from what other clients reveal, whatever its shape."""

import torch

from fedsim.attacking.guesses import guess_inputs


def test_series_of_other_lengths_have_no_part_in_the_mean():
    others = [(torch.full((size, 3), float(size)), size % 2) for size in (7, 7, 9)]
    rng = torch.Generator().manual_seed(0)
    claimed = guess_inputs(others, 4, 2, rng, informed=True)
    assert all(torch.equal(one, torch.full((7, 3), 7.0)) for one in claimed.inputs)
    assert claimed.labels.tolist() == [1, 1, 1, 1]
