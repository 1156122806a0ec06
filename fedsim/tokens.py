"""What a text is made of: the pieces of its tokenizer, by id."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Tokens"]


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
