"""Whether a search can end before its deadline, told after its first iterations."""

import time

from fedsim.adversary import Job

__all__ = ["Pace"]

TIMED = 5
"""Iterations after which it is clear how long the rest will take."""


class Pace:
    """Times the first iterations of a search, and refuses one that cannot end in time.

    fewest: iterations, like the first ones, that have to fit. remedy: what a message advises to
    lower. meaning: of `fewest`, for the message.
    """

    def __init__(
        self, job: Job, fewest: float, remedy: str, meaning: str = "the fewest there can be"
    ) -> None:
        self.job, self.fewest, self.remedy, self.meaning = job, fewest, remedy, meaning
        self.begun, self.began = 0, 0.0

    def step(self) -> None:
        """Call as each iteration begins; raises `ValueError` where time will not do."""
        now = time.monotonic()
        if not self.begun:
            self.began = now
        elif self.begun == TIMED:
            seconds = (now - self.began) / TIMED
            if seconds * (self.fewest - TIMED) > self.job.remaining:
                raise ValueError(
                    f"an iteration takes {seconds:.3g} s, and {self.fewest:.0f} iterations, "
                    f"{self.meaning}, {seconds * self.fewest:.3g} s: longer than the limit "
                    f"allows, of which {self.job.remaining:.3g} s are left. Raise threat.timeout, "
                    f"or lower {self.remedy}"
                )
        self.begun += 1
