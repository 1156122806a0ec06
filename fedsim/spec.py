"""What the examples of a task look like; every adversary may know it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BLANK_PIECE", "END", "UNKNOWN", "WORD_START", "Spec", "Tokens"]

UNKNOWN = "unknown"
"""The value of an attribute that is none of the known ones: a stranger's, say."""

WORD_START = "\u2581"
"""The mark before a piece that starts a word, as in SentencePiece's vocabularies."""

END = 0
"""The label that ends a sequence of word pieces, and that a decoder is given before the first."""

BLANK_PIECE = "<blank>"
"""What label 0 stands for where it is CTC's blank instead, and sequences have no end."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What the inputs of a text task are made of.

    pieces: what each id stands for, as its tokenizer writes it; one a word embedding. special: ids
    by role ("pad", "unk", "cls", "sep", "mask", "bos", "eos"), those that there are. marks: all ids
    that are no part of a text, these among them. prefix, suffix: ids around every text. longest:
    tokens that an input can have, those around it included. embedding: name of the parameter that
    holds the word embeddings (V, d). tokenizer: the tokenizer itself, of `transformers`.
    """

    pieces: tuple[str, ...]
    special: Mapping[str, int]
    marks: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    longest: int
    embedding: str
    tokenizer: Any = field(repr=False)

    def spell(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text that token ids stand for; with `special`, "[CLS]" and the like in it.

        Ids outside the vocabulary are left out.
        """
        known = [i for i in map(int, ids) if 0 <= i < len(self.pieces)]
        if not special:
            known = self.bare(known)
        return str(self.tokenizer.decode(known)).strip()

    def bare(self, ids: Iterable[int]) -> list[int]:
        """The ids that are part of a text: without padding, separators and the unknown."""
        return [i for i in map(int, ids) if i not in self.marks]

    def encode(self, text: str) -> list[int]:
        """The ids of a text alone, without what stands before and after every text."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class Spec:
    """What a task's examples look like; every adversary may know it.

    classes: number of labels (or vocabulary entries) that the head tells apart.
    input_shape: shape of one input without the batch dimension, None when it varies.
    input_range: smallest and largest value of an input, None when unbounded.
    vocabulary: number of word pieces, sample_rate: Hz, features: values of a frame, where an input
        is frames (T, features); None where they mean nothing.
    pieces: what each label stands for in a transcript, `WORD_START` before a new word.
    tokens: what inputs are made of, where they are text.
    attributes: known values of an attribute (a speaker, say), `UNKNOWN` if there are others.
    """

    classes: int
    input_shape: tuple[int, ...] | None = None
    input_range: tuple[float, float] | None = None
    vocabulary: int | None = None
    sample_rate: int | None = None
    features: int | None = None
    pieces: tuple[str, ...] | None = None
    tokens: Tokens | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    def spell(self, labels: Iterable[int]) -> str:
        """The words that a label sequence stands for, up to the first 0, which ends it.

        Labels outside the vocabulary are left out. Raises `ValueError` where labels are no text.
        """
        if self.pieces is None:
            raise ValueError("the labels of this task are no text")
        spelled = []
        for label in map(int, labels):
            if label == END:
                break
            if 0 < label < len(self.pieces):
                spelled.append(self.pieces[label])
        return " ".join("".join(spelled).replace(WORD_START, " ").split())
