"""A limit of time for code that never says how far it is."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Alarm", "alarm"]


class Alarm(BaseException):
    """Time is up. No `Exception`, so that an attack that catches everything hears it too."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Stop an attack that never reports progress: raises `Alarm` in it, and again every second.

    The first a second after its time, in seconds. Works in a process's main thread only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm(f"over its limit of {seconds:g} s, without reporting progress")

    previous = signal.signal(signal.SIGALRM, ring)
    # A second later than the job's own deadline, which ends an attack more gently; then again.
    signal.setitimer(signal.ITIMER_REAL, seconds + 1, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
