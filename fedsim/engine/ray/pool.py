"""The attack workers of a run, which serve one point of it after the other."""

import contextlib
from collections.abc import Sequence
from typing import Any

import ray

from fedsim.engine.ray import places, session
from fedsim.engine.ray.worker import AttackWorker

ENDS_WITHIN = 3.0
"""Seconds that idle workers get to end what they started."""


class AttackPool:
    """Attack workers of a run; those that one point of a sweep leaves idle work for the next one.

    Starting one takes seconds, most of them for imports.

    Args:
        gpus: GPUs of each worker, which may be a fraction.

    Attributes:
        gpus: The same.
    """

    def __init__(self, gpus: float) -> None:
        self.gpus = gpus
        self._idle: list[Any] = []

    def take(self) -> Any:
        """A worker, which `ready` prepares for a point: one that was left, or a new one."""
        if self._idle:
            return self._idle.pop()
        options = ray.remote(AttackWorker).options(num_cpus=1, num_gpus=self.gpus)
        return options.remote(session.session_folder())

    def leave(self, workers: Sequence[Any]) -> None:
        """Keep workers that have nothing to do for the next point."""
        self._idle += workers

    def close(self) -> None:
        """Kill the workers that were left."""
        if not session.session_folder():  # elsewhere, what they started would stay
            with contextlib.suppress(Exception):
                ended = [worker.end.remote() for worker in self._idle]
                ray.wait(ended, num_returns=len(ended), timeout=ENDS_WITHIN)
        places.end_actors(self._idle)
        self._idle = []
