"""The places of actors on the nodes of a Ray cluster, and what is said of those without one."""

import contextlib
import time
from collections.abc import Iterable
from typing import Any

import ray
from ray._private import state
from ray.exceptions import OutOfMemoryError, RayError

from fedsim.errors import EngineError

SETTLES = 0.5
"""Seconds within which an actor gets a worker if there is a place for it."""


def node_of(actor: Any) -> str | None:
    """The address of an actor's node; "" if it has none yet, None if the actor has ended."""
    # `ray.util.state` asks the dashboard, which many clusters do not have.
    found = state.actors(actor._actor_id.hex())
    if not found:
        return ""
    if found["State"] == "DEAD":
        return None
    # While an actor waits for a place, Ray shows the node that was asked last as its address.
    address, port = found["Address"]["IPAddress"], found["Address"]["Port"]
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    asked = {(node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes}
    return "" if (address, port) in asked else str(address)


def end_actors(actors: Iterable[Any]) -> None:
    """Kill actors. One that has no worker yet is given a moment to get one.

    If an actor is killed just when Ray gives it a worker, Ray 2.55 keeps the worker's CPUs for it
    until the program ends, and a later run has fewer.
    """
    ends = time.monotonic() + SETTLES
    for actor in actors:
        with contextlib.suppress(Exception):
            while node_of(actor) == "" and time.monotonic() < ends:
                time.sleep(0.01)
        with contextlib.suppress(Exception):
            ray.kill(actor)


def no_place(what: str, number: int, cpus: float, gpus: float, waited: float) -> EngineError:
    """The error that ends a run none of whose workers has a place.

    Args:
        what: "client" or "attack".
        number: How many workers there should be.
        cpus: CPUs of each.
        gpus: GPUs of each.
        waited: Seconds for which there has been no place.
    """
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    left = in_words(free.get("CPU", 0), free.get("GPU", 0))
    return EngineError(
        f"Ray has had no place for any of {number} {what} workers for {waited:g} s. Each needs "
        f"{in_words(cpus, gpus)}; nodes left: {nodes_in_words()}, with {left} free. Start a node "
        "(ray start --address=...), or continue with --resume and fewer workers "
        "(--set engine.workers=...) or more patience (--set engine.place_timeout=...)"
    )


def fewer(what: str, lacking: int, number: int, waited: float) -> str:
    """The warning that some workers have no place, while others have one."""
    return (
        f"Ray has had no place for {lacking} of {number} {what} workers for {waited:g} s: "
        f"the run goes on with the others. Nodes: {nodes_in_words()}"
    )


def died(error: RayError, no_memory: str) -> str:
    """What is said of a client or an attack whose worker died.

    Args:
        error: What Ray raised.
        no_memory: What to do if Ray ended the worker because its node was short of memory.
    """
    reason = f"its worker died: {type(error).__name__}"
    if isinstance(error, OutOfMemoryError):
        return f"{no_memory}: {reason}"
    return (
        f"{reason}. It crashed, its node was lost, or the system killed it for want of memory: "
        "see the kernel's log (dmesg), or lower engine.workers or engine.attack_workers"
    )


def living_nodes() -> list[tuple[str, dict[str, float]]]:
    """The address of each living node, and what it has."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [(node["NodeManagerAddress"], node["Resources"]) for node in nodes if node["Alive"]]


def nodes_in_words() -> str:
    """All living nodes with what they have, in words."""
    each = (
        f"{address} ({in_words(has.get('CPU', 0), has.get('GPU', 0))})"
        for address, has in sorted(living_nodes(), key=lambda node: node[0])
    )
    return ", ".join(each)


def in_words(cpus: float, gpus: float) -> str:
    """An amount of CPUs and GPUs, in words."""
    words = f"{cpus:g} CPU{'s' * (cpus != 1)}"
    return words + (f" and {gpus:g} GPU{'s' * (gpus != 1)}" if gpus else "")
