"""Short messages written for this project, and public ones put together from a few patterns.

Names, numbers, places and passwords are invented. Topics: access (passwords and doors), money,
health, plans.
"""

import functools
import tomllib
from pathlib import Path

import numpy as np

from fedsim.seeds import numpy_generator

TOPICS = ("access", "health", "money", "plans")

PUBLIC = 2000
"""Public messages."""

_STORED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@functools.cache
def messages() -> tuple[tuple[str, str, str], ...]:
    """The sender, topic and text of each message: 8 senders with 20 messages, 5 on each topic."""
    return tuple(
        (sender, topic, text)
        for sender, topics in _STORED["messages"].items()
        for topic, texts in topics.items()
        for text in texts
    )


def _filled(rng: np.random.Generator) -> str:
    def one(slot: str) -> str:
        known = _STORED["slots"][slot]
        return str(known[int(rng.integers(len(known)))])

    pattern = _STORED["patterns"][int(rng.integers(len(_STORED["patterns"])))]
    given = {slot: one(slot) for slot in _STORED["slots"]}
    given["amount"] = str(int(rng.integers(10, 3000)))
    given["code"] = f"{one('word')}-{int(rng.integers(10, 9999))}"
    given["hour"] = f"{int(rng.integers(1, 13))}:{int(rng.integers(0, 12)) * 5:02d}"
    given["phone"] = f"555-{int(rng.integers(1000, 9999))}"
    given["dose"] = str(int(rng.integers(1, 20)) * 5)
    return str(pattern).format(**given)


@functools.cache
def public_messages() -> tuple[str, ...]:
    """2,000 different messages of the same kind; none of them is one of `messages`."""
    rng = numpy_generator(0, "public messages")
    found: dict[str, None] = {}
    while len(found) < PUBLIC:
        found[_filled(rng)] = None
    return tuple(found)
