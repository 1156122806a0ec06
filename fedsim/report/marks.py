"""Marks the words of a reconstructed text that occur in the original."""

import re
from collections import Counter
from difflib import SequenceMatcher

Segment = tuple[str, str]


def marked(reconstruction: str, original: str) -> list[Segment]:
    """Split a reconstruction into segments (text, mark).

    The mark is "run" for words that follow or precede the same neighbour in the original, "word"
    for other words that occur in it, at most as often as they do, and "" for the rest. Case is
    ignored. Texts with the same number of lines are compared line by line, others as a whole.
    """
    ours, true = reconstruction.splitlines(keepends=True), original.splitlines()
    if len(ours) != len(true):
        ours, true = [reconstruction], [original]
    return [one for pair in zip(ours, true, strict=True) for one in _line(*pair)]


def _line(ours: str, true: str) -> list[Segment]:
    parts = re.findall(r"\w+|\W+", ours)
    places = [at for at, part in enumerate(parts) if re.match(r"\w", part)]
    words = [parts[at].casefold() for at in places]
    known = re.findall(r"\w+", true.casefold())
    marks = [""] * len(parts)
    left = Counter(known)
    blocks = SequenceMatcher(None, words, known, autojunk=False).get_matching_blocks()
    for block in blocks:
        for at in range(block.a, block.a + block.size):
            marks[places[at]] = "run" if block.size > 1 else "word"
            left[words[at]] -= 1
    for at, word in zip(places, words, strict=True):
        if not marks[at] and left[word] > 0:
            marks[at] = "word"
            left[word] -= 1
    return list(zip(parts, marks, strict=True))
