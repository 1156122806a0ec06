"""Estimate from the first iterations whether an attack will finish within its time limit."""

import time

from fedsim.adversary import Job

__all__ = ["Pace"]

TIMED = 5
"""Iterations that the estimate rests on."""


class Pace:
    """Times the first iterations of an attack, and stops one that cannot finish in time.

    Args:
        job: The attack's job, with the seconds that remain.
        fewest: The least number of iterations that the attack needs.
        remedy: The settings that the error message advises to lower.
        meaning: What `fewest` stands for, for the error message.
    """

    def __init__(
        self, job: Job, fewest: float, remedy: str, meaning: str = "the fewest there can be"
    ) -> None:
        self.job, self.fewest, self.remedy, self.meaning = job, fewest, remedy, meaning
        self.begun, self.began = 0, 0.0

    def step(self) -> None:
        """Call at the beginning of each iteration.

        Raises:
            ValueError: At the measured speed, `fewest` iterations exceed the time limit.
        """
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
