"""Engines, which decide where clients and attacks run.

inline    in this process, one after the other
ray       groups of clients, and attacks, on long-lived Ray actors
flower    Flower's own simulation engine, unchanged

The first two are Flower `Grid`s that call the ClientApp themselves, which makes them deterministic
and saves the time that polling takes. All three give the same findings for a seed.

simulate         `fedsim run`: train, intercept every update, attack it, report
attack           `fedsim attack`: attack a recorded run
attackable       what is refused before attacks on a recorded run
request          what `fedsim attack` is asked for
preflight        checks before a run folder is made
process          what a process does around a run
packing          how many clients a GPU trains at once
app              the ServerApp of `flwr run`
session_folder   the folder of a Ray session, which Ray leaves behind
"""

import os
import socket
from abc import ABC, abstractmethod

from fedsim.attacking.executor import Observer
from fedsim.errors import EngineError
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun


class Engine(ABC):
    """Runs scenarios one after the other (the points of a sweep) on the same workers."""

    @abstractmethod
    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Train, intercept and attack.

        Args:
            built: The scenario's task and plugins.
            ledger: The run folder that findings and utility are written to.
            point: The name of the sweep's point, "" without a sweep.
            observer: Called with each event.
        """

    def close(self) -> None:  # noqa: B027 - only an engine with workers has some to give back
        """Stop the workers."""


def workers(scenario: Scenario) -> int:
    """The number of clients that are trained at a time."""
    asked = scenario.engine.workers
    if asked != "auto":
        return asked
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, scenario.training.per_round))


def attack_workers(scenario: Scenario) -> int:
    """The number of attacks that run at a time on Ray."""
    asked = scenario.engine.attack_workers
    return workers(scenario) if asked == "auto" else asked


def check_address(address: str, key: str = "engine.address") -> None:
    """Refuse an `engine.address` that is neither "auto" nor HOST:PORT.

    Args:
        address: The address.
        key: Where it is stated.

    Raises:
        EngineError: It has another form.
    """
    if address in ("", "auto"):
        return
    expected = (
        'expected HOST:PORT, the address that "ray start --head" prints (its port is 6379 by '
        'default), or "auto" on a machine of the cluster'
    )
    if "://" in address:
        kind = address.partition("://")[0]
        raise EngineError(
            f"{key} = {address}: {kind}:// is not supported, because data and updates "
            f"would all pass through one proxy. Run fedsim on a machine of the cluster; {expected}"
        )
    host, _, port = address.rpartition(":")
    bare = host.strip("[]")
    if not bare or not port.isdecimal() or not 0 < int(port) < 65536 or set(bare) & set("/ "):
        raise EngineError(f"{key} = {address}: {expected}")


def knock(address: str) -> str:
    """Check that a Ray cluster answers; Ray itself would try for minutes.

    Args:
        address: `engine.address`.

    Returns:
        The address that Ray is to join; HOST:PORT also for "auto".

    Raises:
        EngineError: The address has another form than HOST:PORT, "auto" leads to no cluster, or
            no Ray cluster accepts connections there, or answers, within 5 s.
    """
    check_address(address)
    joined, named = address, address
    if address == "auto":
        from fedsim.engine.ray.cluster import found_cluster

        joined, key = found_cluster()
        check_address(joined, key)
        named = f"auto, which is {joined} ({key})"
    host, _, port = joined.rpartition(":")
    if not host:
        return joined
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        stale = "unset RAY_ADDRESS, " if named.endswith("(RAY_ADDRESS)") else ""
        raise EngineError(
            f"Ray cannot be reached at engine.address = {named}: {error}. Start it there (ray "
            f"start --head), {stale}state another HOST:PORT, or leave out the address"
        ) from error
    from fedsim.engine.ray.cluster import check_head

    check_head(joined, named)
    return joined


def engine_name(scenario: Scenario) -> str:
    """The engine that a scenario names, or else Ray if it has more than one worker."""
    if scenario.engine.name != "auto":
        return scenario.engine.name
    return "ray" if workers(scenario) > 1 or scenario.engine.address else "inline"
