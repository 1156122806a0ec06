"""Ctrl-C and SIGTERM that some code has swallowed.

Python raises `KeyboardInterrupt` wherever it is. Libraries in other languages that were calling
Python then may end with an error of their own, which looks like a failure of the attack, of a
client or of fedsim. Out of destructors and callbacks of weak references no exception comes: Python
prints it, and goes on.
"""

import _thread
import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

SOON = 0.01
"""Seconds after which an interrupt that Python ignored is raised again."""

_seen = False


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Let SIGTERM, which batch systems and containers send, do what Ctrl-C does, and note both.

    It works in the main thread of a process only.

    Raises:
        KeyboardInterrupt: There was Ctrl-C or SIGTERM, also if the block ended with another error.
    """
    global _seen
    _seen = False
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number == signal.SIGTERM or before[number] is signal.default_int_handler:
            signal.signal(number, _interrupt)
    hook = sys.unraisablehook
    sys.unraisablehook = functools.partial(_ignored, hook)
    try:
        yield
    except Exception as error:
        if _seen:
            raise KeyboardInterrupt from error
        raise
    finally:
        sys.unraisablehook = hook
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


def _ignored(hook: Callable[[Any], object], lost: Any) -> None:
    """`sys.unraisablehook`: raise an ignored interrupt again, and pass other errors to `hook`."""
    if _seen and lost.exc_type is KeyboardInterrupt:
        again = threading.Timer(SOON, _interrupt_again)
        again.daemon = True
        again.start()
    else:
        hook(lost)


def _interrupt_again() -> None:
    if _seen:
        _thread.interrupt_main(signal.SIGTERM)
