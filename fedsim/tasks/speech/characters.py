"""The characters that a recogniser with CTC writes: a to z, the apostrophe, the space."""

import functools
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import BLANK_PIECE, WORD_START
from fedsim.tasks.transcripts import ALPHABET
from fedsim.tasks.wordpieces import frequencies

__all__ = ["Characters", "characters"]

NAMES = (BLANK_PIECE, WORD_START, *ALPHABET)
"""By label. A space is the mark that starts a word, as `Spec.spell` reads it."""

LABELS = {" ": 1, **{character: label for label, character in enumerate(ALPHABET, 2)}}


@dataclass(frozen=True, slots=True, eq=False)
class Characters:
    """The characters by label; label 0 is the blank. frequencies: (29,) in the text."""

    names: tuple[str, ...]
    frequencies: Tensor

    def encode(self, text: str) -> Tensor:
        """Labels (L,) int64 of a plain text, without an end; `DataError` for other characters."""
        if strange := sorted(set(text) - LABELS.keys()):
            raise DataError(
                f"the transcript '{text}' has {', '.join(map(repr, strange))}; expected a-z, the "
                "apostrophe and spaces. Normalise it with fedsim.tasks.transcripts.normalise"
            )
        return torch.tensor([LABELS[character] for character in text], dtype=torch.int64)


@functools.lru_cache(maxsize=4)
def characters(text: tuple[str, ...]) -> Characters:
    """The 29 characters, with their shares of plain sentences."""
    counts = Counter(LABELS[character] for sentence in text for character in sentence)
    return Characters(NAMES, frequencies(counts, len(NAMES)))
