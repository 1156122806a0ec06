"""The progress of attacks, read from their jobs while they run.

An attack only fills the trace of its job, from which it cannot reach its observers.
"""

import dataclasses
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

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
    """

    adversary: str
    victims: int
    iteration: int
    objective: float

    def __str__(self) -> str:
        several = f" on {self.victims}" if self.victims > 1 else ""
        return f"{self.adversary}{several}: iteration {self.iteration}, at {self.objective:.3g}"


def progress(adversary: str, jobs: Sequence[Job]) -> AttackProgress | None:
    """The progress of the jobs of one call; None if no job has reported any."""
    last = [job.trace[-1] for job in jobs if job.trace]
    if not last:
        return None
    steps, objectives = zip(*last, strict=True)
    return AttackProgress(adversary, len(jobs), max(steps), sum(objectives) / len(objectives))


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


class Board:
    """A folder where the workers of this machine write their progress, one file each.

    Workers on other machines do not find it, and write nothing.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedsim-progress-")
        self._known: dict[str, int] = {}

    @property
    def folder(self) -> str:
        """The path of the folder."""
        return self._folder.name

    @staticmethod
    def write(folder: str, worker: int, now: AttackProgress) -> None:
        """Write the progress of a worker, if the folder exists."""
        path = Path(folder) / str(worker)
        with suppress(OSError):
            path.with_suffix(".part").write_text(json.dumps(dataclasses.asdict(now)))
            os.replace(path.with_suffix(".part"), path)

    def read(self) -> list[AttackProgress]:
        """The progress that was written since the last call."""
        found = []
        for path in sorted(Path(self.folder).glob("[0-9]*")):
            with suppress(OSError, ValueError):
                written = path.stat().st_mtime_ns
                if not path.suffix and self._known.get(path.name) != written:
                    self._known[path.name] = written
                    found.append(AttackProgress(**json.loads(path.read_text())))
        return found

    def close(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
