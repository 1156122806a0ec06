"""The characters that CTC recognisers write: a to z, the apostrophe and the space."""

import functools
from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import BLANK_PIECE, WORD_START
from fedsim.tasks.transcripts import ALPHABET
from fedsim.tasks.wordpieces import frequencies

NAMES = (BLANK_PIECE, WORD_START, *ALPHABET)
"""The characters by label. A space is written as the mark of a word's start, as `Spec.spell`
expects."""

LABELS = {" ": 1, **{character: label for label, character in enumerate(ALPHABET, 2)}}


@dataclass(frozen=True, slots=True, eq=False)
class Characters:
    """The 29 characters and how often each occurs in a text.

    Attributes:
        names: The characters by label; label 0 is CTC's blank.
        frequencies: The share of each character in the text, float32 of shape (29,).
    """

    names: tuple[str, ...]
    frequencies: Tensor

    def encode(self, text: str) -> Tensor:
        """Encode a normalised text as labels, int64 of shape (L,), without an end.

        Raises:
            DataError: The text has other characters.
        """
        if strange := sorted(set(text) - LABELS.keys()):
            raise DataError(
                f"the transcript '{text}' has {', '.join(map(repr, strange))}; expected a-z, the "
                "apostrophe and spaces. Normalise it with fedsim.tasks.transcripts.normalise"
            )
        return torch.tensor([LABELS[character] for character in text], dtype=torch.int64)


@functools.lru_cache(maxsize=4)
def characters(text: tuple[str, ...]) -> Characters:
    """Count the characters of normalised sentences."""
    counts = Counter(LABELS[character] for sentence in text for character in sentence)
    return Characters(NAMES, frequencies(counts, len(NAMES)))
