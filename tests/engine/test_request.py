"""What is asked for on the command line of `fedsim attack`."""

import pytest

from fedsim.engine.request import numbers
from fedsim.errors import ScenarioError


def test_numbers_are_read_with_ranges():
    assert numbers("1, 5-7", "--rounds") == {1, 5, 6, 7}
    assert numbers(None, "--rounds") is None
    for odd in ("1-", "5-1", "1-99999999999"):
        with pytest.raises(ScenarioError, match=f"--rounds {odd}: expected numbers or ranges"):
            numbers(odd, "--rounds")
