"""The resources of an attack: randomness, a device, an iteration budget and a time limit."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fedsim.errors import AttackTimeout, Cancelled


class Job:
    """Resources of one attack: randomness, a device, an iteration budget and a time limit.

    Args:
        rng: The only generator that an attack may draw from, on the CPU.
        device: Device of the computation.
        budget: Largest number of iterations, all restarts together; None leaves the number to the
            attack's settings. Starts that run side by side end their last iteration together, so
            that there may be as many more as there are such starts, less one.
        deadline: Wall-clock limit in seconds. It is a safety stop: no result may depend on it.
        cancelled: Returns whether the run is being stopped.
        on_progress: Called with the iteration and the objective.
        compiled: Whether gradient matching compiles its objective (`engine.compile`).
        memory_mb: Memory that the attack may use beyond what it is shown, in MiB; None: no limit
            is enforced.

    Attributes:
        iterations: Number of iterations so far.
        planned: Number of iterations at most, as far as the attack has announced; 0: unknown.
    """

    def __init__(
        self,
        rng: torch.Generator,
        *,
        device: torch.device | str = "cpu",
        budget: int | None = None,
        deadline: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        on_progress: Callable[[int, float], None] | None = None,
        compiled: bool = False,
        memory_mb: float | None = None,
    ) -> None:
        self.rng = rng
        self.device = torch.device(device)
        self.budget = budget
        self.compiled = compiled
        self.memory_mb = memory_mb
        self.iterations = 0
        self.planned = 0
        self.trace: list[tuple[int, float]] = []
        self._cancelled = cancelled
        self._on_progress = on_progress
        self._seconds = deadline
        self._stop_at = None if deadline is None else time.monotonic() + deadline

    @property
    def limit(self) -> float:
        """The time limit in seconds; infinite without one."""
        return math.inf if self._seconds is None else self._seconds

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; infinite without one.

        An attack that cannot finish in this time can refuse at once.
        """
        return math.inf if self._stop_at is None else self._stop_at - time.monotonic()

    def steps(self, limit: int) -> Iterator[int]:
        """Count iterations from 0: `for step in job.steps(300)`.

        Args:
            limit: Number of iterations, fewer if the budget is used up before.
        """
        self.plan(limit)
        for step in range(limit):
            if self.budget is not None and self.iterations >= self.budget:
                return
            self.iterations += 1
            yield step

    def plan(self, more: int) -> None:
        """Announce how many iterations will follow at most, for progress displays.

        Args:
            more: Number of iterations, without the limit of the budget.
        """
        planned = self.iterations + more
        self.planned = planned if self.budget is None else min(planned, self.budget)

    @contextmanager
    def portion(self, of: int) -> Iterator[None]:
        """Limit the budget to one search of several that share it.

        Args:
            of: Number of searches that still share the iterations left, this one included.
        """
        whole = self.budget
        if whole is not None:
            self.budget = self.iterations + -(-max(0, whole - self.iterations) // of)
        try:
            yield
        finally:
            self.budget = whole

    def progress(self, step: int, objective: float | Tensor) -> None:
        """Report the objective; an attack calls this about once an iteration.

        Args:
            step: Number of the iteration.
            objective: Value of the attack's loss.

        Raises:
            Cancelled: The run is being stopped.
            AttackTimeout: The deadline has passed.
        """
        objective = float(objective.item() if isinstance(objective, Tensor) else objective)
        self.trace.append((int(step), objective))
        if self._cancelled is not None and self._cancelled():
            raise Cancelled("the run was stopped")
        if self._stop_at is not None and time.monotonic() > self._stop_at:
            raise AttackTimeout(f"over its limit of {self._seconds:g} s at iteration {step}")
        if self._on_progress is not None:
            self._on_progress(step, objective)
