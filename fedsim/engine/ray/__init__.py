"""The engine on Ray: client workers, attack workers, and the session that both share.

Attacks need no Flower, so that `attacks` and `session` load without it.

clients    the engine: groups of clients on actors
attacks    the executor: attacks on actors while training goes on
pool       the attack workers of a run, from one point to the next
worker     the actor that runs attacks
session    the Ray session that both share
places     where actors run, and what is said of those without a place
cluster    the cluster that an address means
local      how a session of one run on this machine starts
transfer   how messages travel between the server and the actors
board      the progress of attacks on any node
"""

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("ClientWorker", "RayEngine", "RayGrid"), "clients"),
    **dict.fromkeys(("check_nodes", "kill_session"), "session"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
