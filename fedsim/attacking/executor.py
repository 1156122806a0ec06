"""Executors, which run attacks: in this process, or as an engine provides them."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from fedsim import interrupts
from fedsim.attacking.attack import Attack, AttackRunner, GroupFailed, Outcome, one_by_one
from fedsim.attacking.progress import AttackProgress, watched

Observer = Callable[..., None]
"""observer(event, **fields): called with each event, for progress displays and the log."""

UNLOGGED = ("findings", "progress", "running", "failed")
"""Events for displays alone, which the log of a run does not have."""


class Executor(Protocol):
    """Where attacks run."""

    def submit(self, groups: Sequence[Sequence[Attack]]) -> None:
        """Accept groups of attacks, each of one adversary, without waiting for them."""

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Outcomes of the attacks that have ended; with `wait`, of all attacks."""

    @property
    def pending(self) -> int:
        """The number of attacks that were submitted and not collected."""

    def cancel(self) -> None:
        """Drop attacks that have not ended. Those that have can still be collected."""


class InlineExecutor:
    """Runs attacks in this process, when they are collected.

    Args:
        runner: Runs and scores the attacks.
        observer: Called with their progress.
        seconds: Time after which `collect` begins no further attack, unless it is to wait for all;
            those that are left come first the next time. None: it makes all.
    """

    def __init__(
        self,
        runner: AttackRunner,
        observer: Observer = lambda event, **fields: None,
        *,
        seconds: float | None = None,
    ) -> None:
        self._runner, self._observer, self._seconds = runner, observer, seconds
        self._queue: deque[list[Attack]] = deque()
        runner.get_ready()

    def submit(self, groups: Sequence[Sequence[Attack]]) -> None:
        """Queue groups of attacks for the end of the round."""
        self._queue.extend(map(list, groups))

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Run the queued attacks, group by group, as far as the time allows."""

        def show(now: AttackProgress | None = None) -> None:
            if now is not None:
                self._observer("progress", progress=now)
            self._observer("running", running=(runner.running(group, since, now),), workers=1)

        runner, started = self._runner, time.monotonic()
        while self._queue:
            spent = time.monotonic() - started
            if not wait and self._seconds is not None and spent >= self._seconds:
                break
            group, since = self._queue.popleft(), time.monotonic()
            show()
            try:
                with watched(runner.progress, show):
                    outcomes = runner.perform_together(group)
            except GroupFailed as reason:
                interrupts.check()
                self._queue.extendleft(reversed(one_by_one(group, str(reason))))
                continue
            interrupts.check()  # its rows may say that it failed
            yield from outcomes
        self._observer("running", running=(), workers=1)

    @property
    def pending(self) -> int:
        """The number of queued attacks."""
        return sum(map(len, self._queue))

    def cancel(self) -> None:
        """Drop the queue."""
        self._queue.clear()
