"""Labels of transcripts: characters, or word pieces learned by byte-pair encoding.

Byte-pair encoding is that of Sennrich et al. (ACL 2016).
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import BLANK_PIECE, END, WORD_START
from fedsim.tasks.transcripts import ALPHABET

CHARACTERS = (BLANK_PIECE, WORD_START, *ALPHABET)
"""The characters that CTC recognisers write, by label. A space is written as the mark of a word's
start, as `SpeechSpec.spell` expects."""

_LABELS = {" ": 1, **{character: label for label, character in enumerate(ALPHABET, 2)}}


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The word pieces or characters that labels stand for, and how often each occurs.

    A word piece that starts a word begins with `WORD_START`, as `SpeechSpec.spell` expects.

    Attributes:
        names: The pieces by label. Label 0 ends a sequence of word pieces, and is CTC's blank among
            characters.
        frequencies: The share of each piece in the text, float32 of shape (V,).
        labels: Returns the labels of a plain text.
    """

    names: tuple[str, ...]
    frequencies: Tensor
    labels: Callable[[str], list[int]]

    def encode(self, text: str) -> Tensor:
        """Encode a plain text as labels, int64 of shape (L,), the end of word pieces included."""
        return torch.tensor(self.labels(text), dtype=torch.int64)


@functools.lru_cache(maxsize=4)
def characters(text: tuple[str, ...]) -> Pieces:
    """Count the characters of normalised sentences."""
    counts = Counter(_LABELS[character] for sentence in text for character in sentence)
    return Pieces(CHARACTERS, frequencies(counts, len(CHARACTERS)), _spelled)


def _spelled(text: str) -> list[int]:
    """The labels of a text's characters; raises `DataError` if it is not normalised."""
    if strange := sorted(set(text) - _LABELS.keys()):
        raise DataError(
            f"the transcript '{text}' has {', '.join(map(repr, strange))}; expected a-z, the "
            "apostrophe and spaces. Normalise it with fedsim.tasks.transcripts.normalise"
        )
    return [_LABELS[character] for character in text]


@functools.lru_cache(maxsize=4)
def learn(text: tuple[str, ...], size: int) -> Pieces:
    """Learn a vocabulary from plain sentences.

    The result is cached, and the same in every process.

    Args:
        text: Plain sentences.
        size: The number of pieces, the end and the 28 single characters included.

    Raises:
        DataError: The text has fewer pieces than `size`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Metaspace(WORD_START, "always")
    train_tokenizer(model, text, size, ["<end>"], [WORD_START, *ALPHABET])
    names = sorted(model.get_vocab(), key=model.get_vocab().__getitem__)
    counts = Counter({END: len(text)})
    words = Counter(word for sentence in text for word in sentence.split(" "))
    for encoded, times in zip(model.encode_batch(list(words)), words.values(), strict=True):
        for piece in encoded.ids:
            counts[piece] += times
    return Pieces(
        tuple(names), frequencies(counts, size), lambda plain: [*model.encode(plain).ids, END]
    )


def train_tokenizer(
    model: Any, text: tuple[str, ...], size: int, special: Sequence[str], alphabet: Sequence[str]
) -> None:
    """Train a byte-pair tokenizer, the same in every process.

    Args:
        model: An untrained `tokenizers.Tokenizer` with a BPE model, changed in place. It has no
            prefix for continuations: the order of such pieces differs between processes.
        text: Sentences.
        size: The number of pieces, special tokens included.
        special: The tokens with the first ids.
        alphabet: Characters that are pieces even where they do not occur in the text.

    Raises:
        DataError: The text has fewer pieces than `size`.
    """
    from tokenizers.trainers import BpeTrainer

    trainer = BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=list(alphabet),
        show_progress=False,
    )
    model.train_from_iterator(text, trainer)
    if model.get_vocab_size() != size:
        raise DataError(
            f"task.vocabulary = {size}, and the text gives {model.get_vocab_size()} word pieces. "
            "Set it to at most that, or use a longer text"
        )


def frequencies(counts: Counter[int], size: int) -> Tensor:
    """The share of each label in a text, float32 of shape (size,).

    Args:
        counts: How often each label occurs.
        size: The number of labels.
    """
    counted = torch.tensor([counts[label] for label in range(size)], dtype=torch.float64)
    return (counted / counted.sum()).float()
