"""The engine on Ray: client workers, attack workers, and the session that both share.

Attacks need no Flower, so that `attacks` and `session` load without it.
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
