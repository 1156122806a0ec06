"""Ctrl-C and SIGTERM end a run, also where an attack, a client or a library swallowed them."""

import signal
import sys
import time
from typing import ClassVar

import pytest
from pydantic import BaseModel, model_serializer
from pydantic_core import PydanticSerializationError
from rich.console import Console
from support.interceptions import intercepted
from support.rogues import Faulty
from support.tiny import faulty, rows, scenario
from support.tiny_figures import toml

from fedsim import interrupts
from fedsim.adversary import Adversary
from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.audit import planned
from fedsim.attacking.campaign import Campaign
from fedsim.attacking.executor import InlineExecutor
from fedsim.engine.simulate import simulate
from fedsim.errors import ClientError, DataError
from fedsim.knowledge import Knowledge
from fedsim.records import Reconstruction
from fedsim.reproduce import driver
from fedsim.reproduce.console import reproduce
from fedsim.runs.ledger import Ledger
from fedsim.scenario.built import build

pytestmark = pytest.mark.usefixtures("unreported")


def swallowed(error: Exception) -> None:
    """Be interrupted within a library that makes another error of it."""
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:
        raise error from None


class Swallowing(Adversary):
    """Is interrupted within a library that makes another error of it."""

    name: ClassVar[str] = "swallowing"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    def reconstruct(self, seen, job):
        swallowed(RuntimeError("the library failed"))
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


class Interrupted(BaseModel):
    """Is interrupted while it is written as JSON."""

    @model_serializer(mode="wrap")
    def _interrupt(self, plain):
        signal.raise_signal(signal.SIGTERM)
        return plain(self)


def test_an_interrupt_that_pydantic_made_an_error_of_its_own_is_one():
    with pytest.raises(KeyboardInterrupt) as raised, interrupts.noted():
        Interrupted().model_dump_json()
    assert isinstance(raised.value.__cause__, PydanticSerializationError)


def test_other_errors_stay_what_they_are():
    with pytest.raises(ValueError, match="of another kind"), interrupts.noted():
        raise ValueError("of another kind")


@pytest.mark.usefixtures("rogues")
@pytest.mark.parametrize("on_failure", ["stop", "drop"])
def test_an_interrupt_that_a_client_swallowed_is_no_failure_of_the_client(
    on_failure, tmp_path, monkeypatch
):
    training = {"rounds": 3, "on_failure": on_failure}
    sweep = {"training.batch_size": [1, 2]}
    run = faulty("slow", training=training, sweep=sweep, adversaries=[])
    simulate(run, tmp_path / "whole")
    failing = faulty("raise").build_defenses()[0].prepare

    def interrupted(self, training):
        try:
            return failing(training)
        except RuntimeError as error:
            swallowed(error)

    events = []
    with monkeypatch.context() as patch:
        patch.setattr(Faulty, "prepare", interrupted)
        with pytest.raises(KeyboardInterrupt), interrupts.noted():
            simulate(run, tmp_path / "cut", observer=lambda event, **_: events.append(event))
    assert "failed" not in events
    cut = rows(tmp_path / "cut", "utility.csv")
    assert {(row["point"], row["round"]) for row in cut} == {
        ("training.batch_size=1", "0"),
        ("training.batch_size=1", "1"),
    }
    simulate(run, tmp_path / "cut", resume=True)
    assert rows(tmp_path / "cut", "utility.csv") == rows(tmp_path / "whole", "utility.csv")


@pytest.mark.parametrize("error", [DataError, ClientError])
def test_an_interrupt_that_became_an_error_ends_a_reproduction(error, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "_run_points", lambda *_: swallowed(error("it cannot be read")))
    with pytest.raises(KeyboardInterrupt), interrupts.noted():
        reproduce(toml(tmp_path), tmp_path / "out", console=Console(quiet=True))
    assert "it cannot be read" not in (tmp_path / "out/test/smoke.md").read_text()


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
