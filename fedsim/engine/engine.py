"""What an engine is, and which one a scenario runs on."""

import os
import socket
from abc import ABC, abstractmethod

from fedsim.attacking.campaign import Observer
from fedsim.errors import EngineError
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun

__all__ = ["Engine", "engine_name", "knock", "workers"]


class Engine(ABC):
    """Runs one scenario after the other (the points of a sweep), keeping its workers."""

    @abstractmethod
    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Train, intercept, attack; findings and utility go to the ledger."""

    def close(self) -> None:  # noqa: B027 - only an engine with workers has some to give back
        """Give the workers back."""


def workers(scenario: Scenario) -> int:
    """How many clients are trained at a time."""
    asked = scenario.engine.workers
    if asked != "auto":
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, scenario.training.per_round))


def knock(address: str) -> None:
    """Raise `EngineError` at once where nobody listens; Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise EngineError(
            f"Ray cannot be reached at engine.address = {address}: {error}. "
            "Start it there (ray start --head), or leave out the address"
        ) from error


def engine_name(scenario: Scenario) -> str:
    """Which engine a scenario runs on: Ray for more than one worker, unless it names one."""
    if scenario.engine.name != "auto":
        return scenario.engine.name
    return "ray" if workers(scenario) > 1 or scenario.engine.address else "inline"
