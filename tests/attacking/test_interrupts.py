"""Ctrl-C and SIGTERM end a run, also where an attack has swallowed them."""

import signal
import sys
import time
from typing import ClassVar

import pytest
from support.interceptions import intercepted
from support.tiny import scenario

from fedsim import interrupts
from fedsim.adversary import Adversary
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.audit import planned
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build


class Swallowing(Adversary):
    """Is interrupted within a library that makes another error of it."""

    name: ClassVar[str] = "swallowing"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    def reconstruct(self, seen, job):
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise RuntimeError("the library failed") from None
        return Reconstruction()


def test_an_interrupt_that_an_attack_swallowed_is_no_failed_row(tmp_path):
    run = scenario()
    built = build(run, adversaries=planned([Swallowing()]))
    ledger = Ledger.create(tmp_path, run)
    executor = InlineExecutor(AttackRunner(built))
    campaign = Campaign(built, ledger, executor)
    with interrupts.noted():
        campaign.intercept(1, [intercepted(run, 0)])
        with pytest.raises(KeyboardInterrupt):
            campaign.collect(wait=True)
    assert ledger.rows() == []


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        signal.raise_signal(signal.SIGTERM)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    interrupts.check()


class Interrupting:
    """Is interrupted in its destructor."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def five_seconds_after_an_ignored_interrupt() -> None:
    Interrupting()
    for _ in range(500):
        time.sleep(0.01)


def test_an_interrupt_that_python_ignores_comes_again(capsys):
    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        five_seconds_after_an_ignored_interrupt()
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_other_errors_that_python_ignores_are_said_as_ever(monkeypatch):
    class Failing:
        def __del__(self) -> None:
            raise ValueError

    said = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: said.append(lost.exc_type))
    with interrupts.noted():
        Failing()
    assert said == [ValueError]
