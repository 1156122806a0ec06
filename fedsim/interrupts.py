"""Ctrl-C and SIGTERM that some code has swallowed.

Python raises `KeyboardInterrupt` wherever it is. Libraries in other languages that were calling
Python then may end with an error of their own, which looks like a failure of the attack.
"""

import contextlib
import signal
from collections.abc import Iterator

_seen = False


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Let SIGTERM, which batch systems and containers send, do what Ctrl-C does, and note both.

    It works in the main thread of a process only.
    """
    global _seen
    _seen = False
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number == signal.SIGTERM or before[number] is signal.default_int_handler:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _seen = False


def check() -> None:
    """Raise `KeyboardInterrupt` if there was one since `noted`, whatever became of it."""
    if _seen:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: object) -> None:
    global _seen
    _seen = True
    raise KeyboardInterrupt
