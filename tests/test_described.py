"""Descriptions of settings are found wherever their class was written."""

import linecache
import sys
from types import ModuleType

import pytest
from pydantic import BaseModel, Field, create_model

from fedsim.described import Described, description


def same(cls):
    return cls


class Plain(Described):
    one: int = 1
    """What one
    means."""
    silent: int = 2
    said: int = Field(default=3, description="Said to pydantic.")
    """Said below."""


@same
class Decorated(
    Plain,
):
    silent: int = 4
    "A silent one."


def made(second):
    if second:

        class Twin(Described):
            one: int = 1
            """The second."""
    else:

        class Twin(Described):
            one: int = 1
            """The first."""

    return Twin


@pytest.mark.parametrize(
    ("model", "name", "expected"),
    [
        (Plain, "one", "What one means."),
        (Plain, "silent", ""),
        (Plain, "said", "Said to pydantic."),
        (Decorated, "one", "What one means."),
        (Decorated, "silent", "A silent one."),
        (made(False), "one", "The first."),
        (made(True), "one", "The second."),
        (create_model("Made", __base__=Plain), "one", "What one means."),
        (create_model("Foreign", one=(int, 1)), "one", ""),
    ],
)
def test_the_string_below_a_setting_describes_it(model, name, expected):
    assert description(model, name) == expected


def test_a_class_of_a_notebook_is_described(monkeypatch):
    source = 'class Mine(Described):\n    many: int = 1\n    """How many."""\n'
    lines = source.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<cell 1>", (len(source), None, lines, "<cell 1>"))
    here = ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", here)
    here.Described = Described
    exec(compile(source, "<cell 1>", "exec"), vars(here))  # noqa: S102 - as a notebook does
    assert description(here.Mine, "many") == "How many."


def test_a_class_whose_source_is_gone_is_not_described():
    names = {"Described": Described, "__name__": "nowhere"}
    exec("class Mine(Described):\n    many: int = 1\n    'How many.'\n", names)  # noqa: S102
    assert description(names["Mine"], "many") == ""
    assert issubclass(names["Mine"], BaseModel)
