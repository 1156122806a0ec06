"""What the examples of a task look like; every adversary may know it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "BLANK_PIECE",
    "END",
    "UNKNOWN",
    "WORD_START",
    "Column",
    "ImageSpec",
    "Spec",
    "SpeechSpec",
    "TabularSpec",
    "TextSpec",
    "Tokens",
]

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

    A task of one of the built-in modalities returns a subclass, which an adversary may ask for
    (`Adversary.suits`). A task of another modality returns this class, or a subclass of its own.

    Attributes:
        classes: Number of labels (or vocabulary entries) that the head tells apart.
        input_shape: Shape of one input without the batch dimension, None if it varies.
        input_range: Smallest and largest value of an input, None if unbounded.
        attributes: Known values of an attribute (a speaker, say), `UNKNOWN` if there are others.
    """

    modality: ClassVar[str] = "other inputs"
    """What the inputs are, for messages."""

    classes: int
    input_shape: tuple[int, ...] | None = None
    input_range: tuple[float, float] | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, hash=False, kw_only=True
    )

    @property
    def labels_are_tokens(self) -> bool:
        """Whether an example has a label for each of its tokens, and not one for the whole."""
        return False

    def require(self, kind: type["AnySpec"]) -> "AnySpec":
        """Return this spec as one of a modality.

        Raises:
            ValueError: The task is of another modality.
        """
        if not isinstance(self, kind):
            raise ValueError(f"expected a task with {kind.modality}; this task has {self.modality}")
        return self


AnySpec = TypeVar("AnySpec", bound=Spec)


@dataclass(frozen=True, slots=True)
class ImageSpec(Spec):
    """Images of one shape (channels, height, width)."""

    modality: ClassVar[str] = "images"

    input_shape: tuple[int, ...]
    input_range: tuple[float, float] | None = (0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpec(Spec):
    """Texts as token ids, of different lengths.

    Attributes:
        tokens: The vocabulary, and how it is spelled.
    """

    modality: ClassVar[str] = "texts"

    tokens: Tokens

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self.tokens.pieces)

    @property
    def labels_are_tokens(self) -> bool:
        """Whether the labels are masked words."""
        return self.classes == self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSpec(Spec):
    """Utterances as frames (T, features) of different lengths, and their transcripts.

    Attributes:
        features: Values of a frame.
        sample_rate: Samples of sound per second, in Hz.
        pieces: What each label stands for in a transcript, `WORD_START` before a new word.
    """

    modality: ClassVar[str] = "speech"

    features: int
    sample_rate: int
    pieces: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Number of labels."""
        return self.classes

    @property
    def labels_are_tokens(self) -> bool:
        """Always: the labels are those of transcripts."""
        return True

    @property
    def has_blank(self) -> bool:
        """Whether label 0 is the blank of CTC."""
        return self.pieces[:1] == (BLANK_PIECE,)

    def spell(self, labels: Iterable[int]) -> str:
        """The words that a label sequence stands for, up to the first 0, which ends it.

        Labels outside the vocabulary are left out.
        """
        spelled = []
        for label in map(int, labels):
            if label == END:
                break
            if 0 < label < len(self.pieces):
                spelled.append(self.pieces[label])
        return " ".join("".join(spelled).replace(WORD_START, " ").split())


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, and the values of a row that encode it.

    A number is standardised to (number - mean) / scale, one value of the row; a category is
    one-hot, a value for each category.

    Attributes:
        name: The column's name.
        categories: The categories; empty for a column of numbers.
        mean: Mean of the numbers in the training split.
        scale: Standard deviation of the numbers in the training split.
    """

    name: str
    categories: tuple[str, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @property
    def width(self) -> int:
        """How many values of a row encode the column."""
        return len(self.categories) or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularSpec(Spec):
    """Rows of a table, as vectors of one length.

    Attributes:
        columns: The columns, in the order in which they are encoded.
        input_shape: The length of a row, (F,).
    """

    modality: ClassVar[str] = "tables"

    columns: tuple[Column, ...]
    input_shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", (sum(one.width for one in self.columns),))

    def cells(self, row: "Tensor") -> "list[float | str]":
        """Decode a row: the number or the likeliest category of each column.

        Args:
            row: The encoded row, of shape (F,).
        """
        found, at = list[float | str](), 0
        for column in self.columns:
            values = row[at : at + column.width]
            at += column.width
            if column.categories:
                found.append(column.categories[int(values.argmax())])
            else:
                found.append(float(values) * column.scale + column.mean)
        return found
