"""Rounds of a run by a word or a list: those attacked, and those that end with an evaluation."""

import re
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Spaced(Set[int]):
    """Rounds 1, 1 + step, 1 + 2 step, ... and the last, without a list of them.

    Attributes:
        last: The last round.
        step: Their distance.
    """

    last: int
    step: int = 1

    def __contains__(self, round: object) -> bool:
        return round == self.last or round in range(1, self.last, self.step)

    def __iter__(self) -> Iterator[int]:
        yield from range(1, self.last, self.step)
        yield self.last

    def __len__(self) -> int:
        return len(range(1, self.last, self.step)) + 1

    @classmethod
    def _from_iterable(cls, rounds: Iterable[int]) -> Set[int]:  # type: ignore[override]
        return frozenset(rounds)


def chosen_rounds(which: str | list[int], last: int) -> Set[int]:
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
    return Spaced(last, int(step[1]) if step else 1)


Rounds = Annotated[str | list[int], BeforeValidator(_when)]
"""The setting: "all", "log", "every N", or a list of rounds from 1."""
