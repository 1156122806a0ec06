"""A time limit for attacks that report no progress."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Alarm(BaseException):
    """The time limit is over. Not an `Exception`, so that no attack catches it by accident."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Alarm` in the code within, a second after its time limit and again every second.

    It works in the main thread of a process only.

    Args:
        seconds: The time limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm(f"over its limit of {seconds:g} s, without reporting progress")

    previous = signal.signal(signal.SIGALRM, ring)
    # A second later than the job's own deadline, which ends an attack that reports progress.
    signal.setitimer(signal.ITIMER_REAL, seconds + 1, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
