"""Public descriptions of a task's examples (modality, shape, classes, vocabulary, columns)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

UNKNOWN = "unknown"
"""Value of an attribute that is not among the known ones, such as an unknown speaker."""

WORD_START = "\u2581"
"""The mark before a piece that starts a word, as in SentencePiece's vocabularies."""

END = 0
"""Label that ends a sequence of word pieces; it is also a decoder's first input."""

BLANK_PIECE = "<blank>"
"""Piece of label 0 if it is CTC's blank, so that sequences have no end label."""


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The vocabulary and tokenizer of a text task.

    Attributes:
        pieces: The piece of each id as the tokenizer writes it, one for each word embedding.
        special: Ids of special tokens, by role ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
            as far as the tokenizer has them.
        marks: All ids that are not part of a text, special tokens included.
        prefix: Ids before every text.
        suffix: Ids after every text.
        longest: Largest number of tokens of an input, prefix and suffix included.
        embedding: Name of the parameter that holds the word embeddings (V, d).
        tokenizer: The tokenizer of `transformers`.
    """

    pieces: tuple[str, ...]
    special: Mapping[str, int]
    marks: frozenset[int]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    longest: int
    embedding: str
    tokenizer: Any = field(repr=False)

    @property
    def spelled(self) -> bool:
        """Whether the tokenizer is known; otherwise a token is written as its number."""
        return hasattr(self.tokenizer, "get_vocab")

    def spell(self, ids: Iterable[int], *, special: bool = False) -> str:
        """Decode token ids to text.

        Args:
            ids: Token ids; those outside the vocabulary are left out.
            special: Whether the text includes special tokens, such as "[CLS]".
        """
        known = [i for i in map(int, ids) if 0 <= i < len(self.pieces)]
        if not special:
            known = self.bare(known)
        return str(self.tokenizer.decode(known)).strip()

    def bare(self, ids: Iterable[int]) -> list[int]:
        """Return the ids that are part of a text: without padding, separators and unknown ones."""
        return [i for i in map(int, ids) if i not in self.marks]

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without prefix and suffix."""
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class Spec:
    """What a task's examples look like, which is public: every adversary knows it.

    A task of one of the built-in modalities returns a subclass, which an adversary may ask for
    (`Adversary.suits`). A task of another modality returns this class, or a subclass of its own.

    Attributes:
        classes: Number of outputs of the head (classes or vocabulary entries).
        input_shape: Shape of one input without the batch dimension, None if it varies.
        input_range: Smallest and largest value of an input, None if unbounded.
        attributes: Known values of each attribute (such as the speaker), by its name, with
            `UNKNOWN` if there are others.
    """

    modality: ClassVar[str] = "other inputs"
    """Name of the inputs, for messages."""

    classes: int
    input_shape: tuple[int, ...] | None = None
    input_range: tuple[float, float] | None = None
    attributes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, hash=False, kw_only=True
    )

    @property
    def labels_are_tokens(self) -> bool:
        """Whether an example has a label for each token instead of a single one."""
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
        tokens: The vocabulary and the tokenizer.
    """

    modality: ClassVar[str] = "texts"

    tokens: Tokens

    @property
    def vocabulary(self) -> int:
        """Number of tokens."""
        return len(self.tokens.pieces)

    @property
    def labels_are_tokens(self) -> bool:
        """Whether the labels are masked tokens."""
        return self.classes == self.vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSpec(Spec):
    """Utterances as frames (T, features) of different lengths, and their transcripts.

    Attributes:
        features: Number of values of a frame.
        sample_rate: Sample rate of the sound, in Hz; 0 if it is not known.
        pieces: Text of each label in a transcript, with `WORD_START` before a new word.
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
        """True: the labels are those of transcripts."""
        return True

    @property
    def has_blank(self) -> bool:
        """Whether label 0 is the blank of CTC."""
        return self.pieces[:1] == (BLANK_PIECE,)

    def spell(self, labels: Iterable[int]) -> str:
        """Decode a label sequence to words, up to the first 0, which ends it.

        Args:
            labels: Labels; those outside the vocabulary are left out.
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
        """Number of values of a row that encode the column."""
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
