"""What a paper states, the verdict on it, and mistakes in the table of it."""

import dataclasses
import re

import pytest
from support.tiny_figures import PUBLISHED, toml

from fedsim.errors import ScenarioError
from fedsim.reproduce import choose, outcome
from fedsim.reproduce.cells import KNOWN, Cell, Place
from fedsim.reproduce.console import reproduce
from fedsim.reproduce.verdict import Measured, judge, shown, speaks_of
from fedsim.runs.reading import MEASURES
from fedsim.scenario import Scenario
from fedsim.scenario.paper import Published


def ours(*cells: Cell, series: str = "llg", **others) -> Measured:
    return Measured("asr", MEASURES["asr"], series, cells, **others)


def cell(mean: float, low: float | None, high: float | None, n: int = 9, at: float = 8.0) -> Cell:
    return Cell("asr", "llg", Place(at, frozenset({f"{at:g}"})), n, mean, low, high)


@pytest.mark.parametrize(
    ("said", "mean", "verdict"),
    [
        ({"value": 0.9}, (0.88, 0.85, 0.91), "agrees"),
        ({"value": 0.9}, (0.8, 0.75, 0.85), "differs by -10.0 points at 8: why"),
        ({"value": 0.9, "tolerance": 0.06}, (0.8, 0.75, 0.85), "agrees"),
        ({"at_least": 0.98}, (0.97, 0.95, 0.98), "agrees"),
        ({"at_least": 0.98}, (0.9, 0.88, 0.92), "differs by -8.0 points at 8: why"),
        ({"at_most": 0.3}, (0.1, 0.05, 0.15), "agrees"),
        ({"at_most": 0.3}, (0.5, 0.4, 0.6), "differs by +20.0 points at 8: why"),
        ({"between": [0.5, 0.6]}, (0.7, 0.55, 0.8), "agrees"),
        ({"value": 0.9}, (0.9, None, None), "too few repetitions to say"),
        (
            {"value": 0.9},
            (0.8, None, None),
            "too few repetitions to say (off by -10.0 points at 8, n = 9): why",
        ),
    ],
)
def test_a_verdict_compares_the_interval_with_the_statement(said, mean, verdict):
    assert judge(Published(**said), ours(cell(*mean)), remark="why").text == verdict


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"value": 0.4}, "few"),
        ({"at_least": 0.3}, "few"),
        ({"at_most": "chance"}, "agrees"),
        ({"value": 0.17}, "differs"),
        ({"value": 0.6}, "differs"),
        ({"between": [0.1, 0.3]}, "agrees"),
    ],
)
def test_what_is_a_guess_as_well_agrees_with_nothing_better(said, outcome):
    guess = dataclasses.replace(cell(0.25, 0.18, 0.5), chance=0.2)
    assert judge(Published(**said), ours(guess)).outcome == outcome


def test_two_series_that_hardly_differ_are_alike_within_a_tolerance():
    said = Published(like="llg, cnn", tolerance=0.05)
    others = {cell(0.0, None, None).place: 0.7}
    near, far = cell(0.64, 0.62, 0.66), cell(0.6, 0.58, 0.62)
    assert judge(said, ours(near, series="llg, lenet", others=others)).outcome == "agrees"
    assert judge(said, ours(far, series="llg, lenet", others=others)).text == (
        "differs by -5.0 points at 8"
    )
    assert shown(said, MEASURES["asr"]) == "as llg, cnn ± 5 %"


def test_what_is_to_be_like_a_series_that_is_not_there_is_not_measured(tmp_path):
    published = '[[paper.published]]\nseries = "idlg"\nlike = "{}"\ntolerance = 1.0'
    for other, told in (("llg", "agrees"), ("rlg", "not measured")):
        source = toml(tmp_path, published=published.format(other))
        reproduce(source, tmp_path / "out")
        (figure,) = choose(source)
        (found,) = outcome(figure, tmp_path / "out", "smoke").judgements
        assert found.outcome == told


def test_a_statement_has_its_remark_below_the_table_whatever_the_verdict():
    said = Published(value=0.9, remark="theirs is another model")
    for mean in ((0.9, 0.88, 0.92), (0.5, 0.4, 0.6)):
        found = judge(said, ours(cell(*mean)), remark="the figure's")
        assert "model" not in found.text
        assert "figure" not in found.text


def test_a_verdict_says_where_no_attack_succeeded():
    said, good = Published(value=1.0), cell(1.0, 1.0, 1.0, at=1.0)
    found = judge(said, ours(good, missing=("8",), fruitless=("2", "4")), remark="why")
    assert found.outcome == "differs"
    assert found.text == (
        "agrees at the other 1; no attack succeeded at 2, 4: why; not measured at 8 yet"
    )
    assert judge(said, ours(fruitless=("",))).text == "no attack succeeded"


def test_a_verdict_over_several_places_names_those_that_differ():
    cells = [cell(1.0, 1.0, 1.0, at=1.0), cell(0.5, 0.4, 0.6, at=2.0)]
    said = Published(at_least=0.9)
    found = judge(said, ours(*cells, missing=("4",)))
    assert found.outcome == "differs"
    assert found.text == (
        "differs by -40.0 points at 2; agrees at the other 1; not measured at 4 yet"
    )
    nothing = judge(said, ours(missing=("1",)), problem="no such data")
    assert nothing.text == "not measured: no such data"


def test_a_statement_says_one_thing_about_places_it_names():
    with pytest.raises(ValueError, match="exactly one"):
        Published(value=1.0, at_least=0.5)
    with pytest.raises(ValueError, match="exactly one"):
        Published()
    with pytest.raises(ValueError, match="lower number first"):
        Published(between=[2.0, 1.0])
    here = Place(8.0, frozenset({"8"}))
    assert speaks_of(Published(value=1.0), here, "b")
    assert speaks_of(Published(value=1.0, at={"b": [4, 8]}), here, "b")
    assert not speaks_of(Published(value=1.0, at={"b": 4}), here, "b")
    assert shown(Published(between=[0.55, 0.9]), MEASURES["asr"]) == "55 % to 90 %"
    assert shown(Published(at_most=54.0, tolerance=1.0), KNOWN["seconds"]) == "≤ 54 s ± 1 s"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": "training.lr"}, "expected a key of the sweep"),
        (
            {"measure": '"asr"', "published": PUBLISHED.replace("at_least", "at_leest")},
            "Did you mean 'at_least'",
        ),
        (
            {"published": '[[paper.published]]\nvalue = 1.0\nat = {"training.lr" = 1}'},
            'names "training.lr"; the axis is "training.batch_size"',
        ),
        ({"published": '[[paper.published]]\nvalue = 1.0\nmeasure = "f1"'}, "is none of asr"),
        ({"id": "No Id"}, "paper"),
    ],
)
def test_a_mistake_in_the_table_is_an_error_that_says_so(change, words, tmp_path):
    with pytest.raises(ScenarioError, match=re.escape(words)):
        Scenario.load(toml(tmp_path, **change))
