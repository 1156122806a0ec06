"""Engines, which decide where clients and attacks run.

    inline    in this process, one after the other
    ray       groups of clients, and attacks, on long-lived Ray actors
    flower    Flower's own simulation engine, unchanged

The first two are Flower `Grid`s that call the ClientApp themselves, which makes them deterministic
and saves the time that polling takes. All three give the same findings for a seed.
"""

import contextlib
import os
from collections.abc import Iterator

from fedsim.engine.engine import Engine, engine_name, knock, workers
from fedsim.errors import EngineError
from fedsim.scenario import Scenario

__all__ = ["Engine", "engine_name", "knock", "open_engine", "workers"]


@contextlib.contextmanager
def open_engine(scenario: Scenario) -> Iterator[Engine]:
    """Start the engine of a scenario, and close it in the end.

    Args:
        scenario: The scenario, for its `engine` table and its number of clients.

    Yields:
        The engine.

    Raises:
        EngineError: The engine cannot start.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    name = engine_name(scenario)
    engine: Engine
    if name == "inline":
        from fedsim.engine.inline import InlineEngine

        engine = InlineEngine()
    elif name == "ray":
        try:
            from fedsim.engine.ray import RayEngine
        except ImportError as error:
            raise EngineError(f"Ray is not installed ({error}); set engine.workers = 1") from error
        engine = RayEngine(scenario)
    else:
        from fedsim.engine.flower import FlowerEngine

        engine = FlowerEngine()
    try:
        yield engine
    finally:
        engine.close()
