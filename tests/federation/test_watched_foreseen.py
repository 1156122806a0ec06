"""What speaks against an attack on someone's own project is logged before it is made."""

import logging

import pytest
from support.watched import audited
from torch import nn, optim

from adversaries import IDLG
from fedsim import HonestButCurious, reveal


@pytest.fixture(autouse=True)
def _store(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSIM_TRUTH", str(tmp_path / "truth"))


def train(net, loader):
    optimizer = optim.SGD(net.parameters(), lr=0.1)
    for x, y in reveal(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()


def test_an_attack_that_should_find_nothing_is_named_before_it_is_made(
    tmp_path, caplog, monkeypatch
):
    class Audit(HonestButCurious):
        def __init__(self, strategy, adversaries, **settings):
            super().__init__(strategy, [IDLG()], **settings)

    monkeypatch.setattr("support.watched.HonestButCurious", Audit)
    caplog.set_level(logging.INFO, logger="flwr")
    audited(tmp_path, train, train)
    said = "idlg is expected to find nothing: 32 examples; it needs a single example"
    assert caplog.text.count(said) == 1
    assert caplog.text.index(said) < caplog.text.index("attacks to make")
