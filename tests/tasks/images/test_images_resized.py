"""Small image sets are resized when they are loaded, and not for each batch."""

import pytest
import torch

from fedsim.tasks.images import data
from fedsim.tasks.images.data import load


@pytest.mark.parametrize("size", [5, 20])
def test_small_data_are_resized_once_to_the_same_bits(monkeypatch, size):
    at_once = load("digits", None, size=size, test_fraction=0.2, seed=0)
    monkeypatch.setattr(data, "RESIZED", 0)
    each_time = load("digits", None, size=size, test_fraction=0.2, seed=0)
    assert at_once.resized is not None
    assert each_time.resized is None
    for some in (torch.tensor([3]), torch.arange(1700, 1710), torch.randperm(1797)[:64]):
        assert torch.equal(at_once.inputs(some), each_time.inputs(some))
    assert at_once.fingerprint() == each_time.fingerprint()
