"""What the fuzzers share: how many examples, the time that one may take, and odd values.

`FEDSIM_FUZZ` is the number of examples of each fuzzer, 50 by default; `make chaos` tries 2,000.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedsim.errors import FedsimError

EXAMPLES = int(os.environ.get("FEDSIM_FUZZ", "50"))
SECONDS = 60
"""Seconds after which an example counts as hanging."""

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


class Hangs(BaseException):
    """An example took longer than `SECONDS`."""


def refused(job: Callable[[], object], *, fine: tuple[type[Exception], ...] = ()) -> str:
    """The error of fedsim's that a job ends with; "" for none, or one of those that are `fine`.

    Any other exception is raised, and `Hangs` if the job takes too long.
    """

    def late(number: int, frame: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        job()
    except fine:
        return ""
    except FedsimError as error:
        str(error).encode()  # can be printed
        return str(error).strip() or "no message"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return ""


TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "²", "\0", "a\nb", "../x", "a:b", "1e400", "nan", "é", "🦆", "x" * 300]
    ),
    st.text(max_size=8).filter(lambda text: text.isprintable()),
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 2, 3, 10**6, 2**31, 2**63 - 1, -(2**63), True, False]),
    st.sampled_from([0.0, -0.0, 0.5, 1.5, -1.0, 1e-300, 1e300]),
    st.sampled_from([float("inf"), float("-inf"), float("nan")]),
    st.integers(-3, 12),
    st.floats(-2, 2),
)
PLAIN = NUMBERS | TEXTS
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)

_PLACES = st.floats(0, 1)
BREAKS = st.one_of(
    st.tuples(st.just("flip"), _PLACES, st.integers(1, 255)),
    st.tuples(st.just("cut"), _PLACES, st.integers(0, 0)),
    st.tuples(
        st.just("insert"), _PLACES, st.sampled_from([b"\0", b"\n", b"\xff", b'"', b"9" * 30])
    ),
    st.tuples(st.just("repeat"), _PLACES, st.integers(1, 40)),
    st.tuples(st.sampled_from(["gone", "folder", "loop", "pipe", "empty"]), _PLACES, st.just(0)),
)
"""How a file is broken: in which way, where, and with what."""


def break_file(path: Path, how: str, where: float, what: Any) -> None:
    """Break a file that is not empty in one of the ways of `BREAKS`."""
    content = path.read_bytes()
    at = int(where * max(0, len(content) - 1))
    if how == "flip":
        path.write_bytes(content[:at] + bytes([content[at] ^ what]) + content[at + 1 :])
    elif how == "cut":
        path.write_bytes(content[:at])
    elif how == "insert":
        path.write_bytes(content[:at] + what + content[at:])
    elif how == "repeat":
        path.write_bytes(content[:at] + content[at : at + what] * 3 + content[at:])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "loop":
            path.symlink_to(path)
        elif how == "pipe":
            os.mkfifo(path)
