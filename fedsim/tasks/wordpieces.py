"""Word pieces learned from a text by byte-pair encoding (Sennrich et al., ACL 2016)."""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsim.errors import DataError
from fedsim.records import END, WORD_START
from fedsim.tasks.transcripts import ALPHABET


@dataclass(frozen=True, slots=True, eq=False)
class WordPieces:
    """A vocabulary of word pieces and how often each occurs.

    A piece that starts a word begins with `WORD_START`, as `Spec.spell` expects.

    Attributes:
        names: The pieces by label; label 0 ends a sequence.
        frequencies: The share of each piece in the text, float32 of shape (V,).
    """

    names: tuple[str, ...]
    frequencies: Tensor
    _model: Any

    def encode(self, text: str) -> Tensor:
        """Encode a plain text as labels, int64 of shape (L,), the end included."""
        return torch.tensor([*self._model.encode(text).ids, END], dtype=torch.int64)


@functools.lru_cache(maxsize=4)
def learn(text: tuple[str, ...], size: int) -> WordPieces:
    """Learn a vocabulary from plain sentences.

    The result is cached, and the same in every process.

    Args:
        text: Plain sentences.
        size: The number of pieces, the end and the 28 single characters included.

    Raises:
        DataError: The text has fewer pieces than `size`.
    """
    model = train_tokenizer(text, size, special=["<end>"], alphabet=[WORD_START, *ALPHABET])
    names = sorted(model.get_vocab(), key=model.get_vocab().__getitem__)
    counts = Counter({END: len(text)})
    words = Counter(word for sentence in text for word in sentence.split(" "))
    for encoded, times in zip(model.encode_batch(list(words)), words.values(), strict=True):
        for piece in encoded.ids:
            counts[piece] += times
    return WordPieces(tuple(names), frequencies(counts, size), model)


def train_tokenizer(
    text: tuple[str, ...],
    size: int,
    *,
    special: Sequence[str],
    alphabet: Sequence[str],
    unknown: str | None = None,
    normalizer: Any = None,
    split: Any = None,
) -> Any:
    """Train a byte-pair tokenizer of the `tokenizers` library, the same in every process.

    Args:
        text: Sentences.
        size: The number of pieces, special tokens included.
        special: The tokens with the first ids.
        alphabet: Characters that are pieces even where they do not occur in the text.
        unknown: The special token for characters outside the vocabulary.
        normalizer: A normalizer of the library. By default the text is left unchanged.
        split: A pre-tokenizer of the library. By default the text is split at spaces.

    Returns:
        A `tokenizers.Tokenizer`.

    Raises:
        DataError: The text has fewer pieces than `size`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    # There is no prefix for continuations: the order of such pieces differs between processes.
    model = Tokenizer(models.BPE(unk_token=unknown))
    if normalizer is not None:
        model.normalizer = normalizer
    model.pre_tokenizer = split or pre_tokenizers.Metaspace(
        replacement=WORD_START, prepend_scheme="always"
    )
    trainer = trainers.BpeTrainer(
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
    return model


def frequencies(counts: Counter[int], size: int) -> Tensor:
    """The share of each label in a text, float32 of shape (size,).

    Args:
        counts: How often each label occurs.
        size: The number of labels.
    """
    counted = torch.tensor([counts[label] for label in range(size)], dtype=torch.float64)
    return (counted / counted.sum()).float()
