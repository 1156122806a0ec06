"""How far an attack is, told while it runs by whoever watches it.

The attack itself only fills its job's trace: nothing that it can reach leads to who listens.
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

__all__ = ["AttackProgress", "Board", "progress", "watched"]

EVERY = 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class AttackProgress:
    """Of the attacks that one call makes: whose, on how many victims, and the last they told.

    iteration: the largest of them. objective: the mean of what each told last.
    """

    adversary: str
    victims: int
    iteration: int
    objective: float

    def __str__(self) -> str:
        several = f" on {self.victims}" if self.victims > 1 else ""
        return f"{self.adversary}{several}: iteration {self.iteration}, at {self.objective:.3g}"


def progress(adversary: str, jobs: Sequence[Job]) -> AttackProgress | None:
    """How far these jobs of one call are; None where none has told anything."""
    last = [job.trace[-1] for job in jobs if job.trace]
    if not last:
        return None
    steps, objectives = zip(*last, strict=True)
    return AttackProgress(adversary, len(jobs), max(steps), sum(objectives) / len(objectives))


@contextmanager
def watched(
    look: Callable[[], AttackProgress | None], report: Callable[[AttackProgress], None]
) -> Iterator[None]:
    """Meanwhile look every second, in a thread, and tell what is new."""
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
    """A folder of this machine where its workers write how far they are, each over its last.

    Workers on other machines do not find it, and write nothing.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="fedsim-progress-")
        self._known: dict[str, int] = {}

    @property
    def folder(self) -> str:
        """Its path."""
        return self._folder.name

    @staticmethod
    def write(folder: str, worker: int, now: AttackProgress) -> None:
        """What a worker says; where the folder is not there, nothing."""
        path = Path(folder) / str(worker)
        with suppress(OSError):
            path.with_suffix(".part").write_text(json.dumps(dataclasses.asdict(now)))
            os.replace(path.with_suffix(".part"), path)

    def read(self) -> list[AttackProgress]:
        """What was written since it was read last."""
        found = []
        for path in sorted(Path(self.folder).glob("[0-9]*")):
            with suppress(OSError, ValueError):
                written = path.stat().st_mtime_ns
                if not path.suffix and self._known.get(path.name) != written:
                    self._known[path.name] = written
                    found.append(AttackProgress(**json.loads(path.read_text())))
        return found

    def close(self) -> None:
        """Remove it."""
        self._folder.cleanup()
