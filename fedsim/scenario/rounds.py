"""Rounds of a run by a word or a list: those attacked, and those that end with an evaluation."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator

EVERY = re.compile(r"every ([1-9]\d{0,8})")
"""Rounds at a constant distance, as a text."""


def _when(value: Any) -> Any:
    listed = isinstance(value, list) and all(type(number) is int for number in value)
    named = value in ("all", "log", None) or (isinstance(value, str) and EVERY.fullmatch(value))
    if not named and not listed:
        raise ValueError("expected 'all', 'log', 'every N', or a list of round numbers")
    return value


def chosen_rounds(which: str | list[int], last: int) -> frozenset[int]:
    """The rounds that a setting names.

    Args:
        which: "all"; "log": 1, 2, 4, 8, ... and the last; "every N": 1, 1 + N, 1 + 2 N, ... and the
            last; or a list of rounds.
        last: The number of rounds.
    """
    if isinstance(which, list):
        return frozenset(which)
    if which == "log":
        return frozenset({last, *(2**power for power in range(last.bit_length()))})
    step = EVERY.fullmatch(which)
    return frozenset({last, *range(1, last + 1, int(step[1]) if step else 1)})


Rounds = Annotated[str | list[int], BeforeValidator(_when)]
"""The setting: "all", "log", "every N", or a list of rounds from 1."""
