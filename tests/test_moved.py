"""Modules that have moved can be imported by their old names."""

import os
from importlib import import_module

import pytest
from support.commands import python

import adversaries
from fedsim.moved import _MOVED


def test_every_new_name_is_a_module():
    assert adversaries  # importing it adds its own
    assert {"fedsim.client", "adversaries.llg"} <= set(_MOVED)
    for new in _MOVED.values():
        import_module(new)


@pytest.mark.parametrize(
    "line",
    [
        "from fedsim.simulation import simulate; assert simulate is fedsim.simulate",
        "from fedsim import client; assert client.defend is fedsim.defend",
        "import fedsim.server; assert fedsim.server.HonestButCurious is fedsim.HonestButCurious",
        "from fedsim.secure.grid import SecureGrid; import fedsim.federation.secure.grid as new;"
        "assert SecureGrid is new.SecureGrid",
        "from adversaries.llg import LLG; assert LLG is __import__('adversaries').LLG",
    ],
)
def test_an_old_name_has_what_the_new_one_has_and_warns(line, tmp_path):
    done = python("-c", f"import fedsim; {line}", folder=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "is now" in done.stderr
    assert "DeprecationWarning" in done.stderr
