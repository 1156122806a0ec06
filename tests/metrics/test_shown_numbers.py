"""Numbers of a metric are shown with three digits, and thousands whole."""

import pytest

from fedsim.metric import Measure
from fedsim.metrics import METRICS
from fedsim.report.intervals import change, interval, interval_text


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


def test_a_difference_of_shares_is_in_points():
    change = Measure("Change of accuracy", kind="share", signed=True)
    assert change.show(-0.0459) == "-4.59 points"
    assert interval_text(-0.0459, -0.0593, -0.0326, change) == "-4.59 points [-5.93, -3.26]"


@pytest.mark.parametrize(("name", "most"), [("ssim", 1), ("psnr", 100)])
def test_an_interval_ends_where_an_exact_copy_is(name, most):
    low, high = interval([0.99 * most, 0.999 * most, 0.8 * most], METRICS[name].shown)
    assert low < 0.8 * most < high == most
