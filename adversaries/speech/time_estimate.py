"""Estimate from the first iterations whether an attack will finish within its time limit."""

import time

from fedsim.adversary import Job

TIMED = 5
"""Number of iterations that the estimate is based on."""


class TimeEstimate:
    """Times the first iterations of an attack, and stops one that cannot finish in time.

    Args:
        job: The attack's job, with the seconds that remain.
        least: The least number of iterations that the attack needs.
        remedy: The settings that the error message advises to lower.
    """

    def __init__(self, job: Job, least: float, remedy: str) -> None:
        self.job, self.least, self.remedy = job, least, remedy
        self.begun, self.began = 0, 0.0

    def step(self) -> None:
        """Call at the beginning of each iteration.

        Raises:
            ValueError: At the measured speed, `least` iterations exceed the time limit.
        """
        now = time.monotonic()
        if not self.begun:
            self.began = now
        elif self.begun == TIMED:
            seconds = (now - self.began) / TIMED
            if seconds * (self.least - TIMED) > self.job.remaining:
                raise ValueError(
                    f"an iteration takes {seconds:.3g} s, and the least number of iterations for "
                    f"all candidates, {self.least:.0f}, {seconds * self.least:.3g} s: longer than "
                    f"the time limit allows, of which {self.job.remaining:.3g} s are left. Raise "
                    f"threat.timeout, or lower {self.remedy}"
                )
        self.begun += 1
