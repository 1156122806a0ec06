"""Numbers of a metric are shown with three digits, and thousands whole."""

import pytest

from fedsim.metric import Measure
from fedsim.report.intervals import change


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.0123"),
        (999.4, "999"),
        (999.6, "1,000"),
        (2711.0, "2,711"),
        (-8190.4, "-8,190"),
        (999_999.6, "1e+06"),
        (1.5e9, "1.5e+09"),
    ],
)
def test_numbers_are_shown_as_people_write_them(value, text):
    assert Measure("Iterations").show(value) == text


def test_differences_are_shown_in_the_same_way():
    assert change(1450.2, Measure("Iterations")) == "+1,450"
    assert change(-0.0251, Measure("Error")) == "-0.0251"
