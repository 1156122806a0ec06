"""The progress of attacks, read from their jobs while they run.

An attack only fills the trace of its job, from which it cannot reach its observers.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fedsim.adversary import Job

EVERY = 1.0
"""Seconds between two readings."""


@dataclass(frozen=True, slots=True)
class AttackProgress:
    """The progress of the attacks of one call of an adversary.

    Attributes:
        adversary: The adversary's label.
        victims: The number of victims.
        iteration: The largest iteration of the attacks.
        objective: The mean of their latest objectives.
        of: The largest number of iterations that one of them may make; 0: unknown.
    """

    adversary: str
    victims: int
    iteration: int
    objective: float
    of: int = 0

    @property
    def iterations(self) -> str:
        """The iteration and the largest number of them, such as "120 of 300"."""
        return f"{self.iteration}" + (f" of {self.of}" if self.of >= self.iteration > 0 else "")

    def __str__(self) -> str:
        several = f" on {self.victims}" if self.victims > 1 else ""
        return f"{self.adversary}{several}: iteration {self.iterations}, at {self.objective:.3g}"


def progress(adversary: str, jobs: Sequence[Job]) -> AttackProgress | None:
    """The progress of the jobs of one call; None if no job has reported any."""
    last = [job.trace[-1] for job in jobs if job.trace]
    if not last:
        return None
    steps, objectives = zip(*last, strict=True)
    mean = sum(objectives) / len(objectives)
    return AttackProgress(adversary, len(jobs), max(steps), mean, max(job.planned for job in jobs))


@contextmanager
def watched(
    look: Callable[[], AttackProgress | None], report: Callable[[AttackProgress], None]
) -> Iterator[None]:
    """Read progress every second, in a thread, while the code within runs.

    Args:
        look: Reads the progress.
        report: Called with progress that has changed.
    """
    over, before = threading.Event(), [look()]

    def watch() -> None:
        while not over.wait(EVERY):
            now = look()
            if now is not None and now != before[0]:
                before[0] = now
                report(now)

    thread = threading.Thread(target=watch, daemon=True, name="fedsim-progress")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class RunningAttacks:
    """The attacks that one worker makes now, in one call of an adversary.

    Attributes:
        adversary: The adversary's label.
        round: The round of the victims.
        clients: The client of each victim; those of a sum are joined by "+".
        since: `time.monotonic()` when the call began, or when it was given to its worker.
        node: Address of the worker's node in a Ray cluster; "" if this is the only machine.
        progress: What the attacks have reported; None if nothing yet.
    """

    adversary: str
    round: int
    clients: tuple[str, ...]
    since: float
    node: str = ""
    progress: AttackProgress | None = None


class Estimate:
    """The time that pending attacks will take, by the mean seconds of those that have ended."""

    def __init__(self) -> None:
        self._pending: Counter[str] = Counter()
        self._ended: Counter[str] = Counter()
        self._seconds: dict[str, float] = defaultdict(float)

    def queue(self, labels: Mapping[str, int]) -> None:
        """Add pending attacks.

        Args:
            labels: Their number, by the adversary's label.
        """
        self._pending.update(labels)

    def end(self, label: str, seconds: float) -> None:
        """Take an attack of an adversary as ended.

        Args:
            label: The adversary's label.
            seconds: How long the attack took; of several made in one call, an equal share.
        """
        self._pending[label] -= 1
        self._ended[label] += 1
        self._seconds[label] += seconds

    def left(
        self, workers: int, running: Iterable[RunningAttacks] = (), now: float = 0.0
    ) -> float | None:
        """The seconds until all pending attacks have ended.

        Pending attacks of each adversary times their mean seconds, less what running ones have
        taken already, over the number of workers.

        Args:
            workers: Number of attacks that run at a time.
            running: The attacks that run.
            now: `time.monotonic()`.

        Returns:
            Seconds; None if nothing is pending, or no attack of a pending adversary has ended.
        """
        pending = +self._pending
        if not pending or not all(self._ended[label] for label in pending):
            return None
        mean = {label: self._seconds[label] / self._ended[label] for label in pending}
        total = sum(number * mean[label] for label, number in pending.items())
        for call in running:
            whole = len(call.clients) * mean.get(call.adversary, 0.0)
            total -= min(now - call.since, whole)
        return max(0.0, total) / max(1, min(workers, pending.total()))


def about(seconds: float) -> str:
    """A time left in words, as exact as an estimate is: "about 3 min left"."""
    if seconds < 55:
        return f"about {max(5, 5 * round(seconds / 5))} s left"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min left"
    return f"about {round(seconds / 3600)} h left"
