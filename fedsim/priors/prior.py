"""What a language prior is, and the texts that it is made of."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fedsim.records import Tokens

__all__ = ["LanguagePrior", "counted", "sentences"]

LONG = 32
"""A text of more words is split into its sentences: victims' texts are a sentence or a few."""

END_OF_SENTENCE = re.compile(r"""(?<=[.!?…])(["'”’)\]]*)\s+""")
TOGETHER = 4096
"""Texts that a tokenizer is given at a time."""


class LanguagePrior(ABC):
    """How likely a text is, by what is publicly known of the language.

    description: what it is, for diagnostics. deviation: whether it reads the text in other tokens
    than the victim's, where LAMP (Balunovic et al., NeurIPS 2022, section 4) has a model of those.
    """

    description: str
    deviation: bool = False

    @abstractmethod
    def surprise(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Mean negative log-likelihood a token in nats, (R,) float32, on the device of `ids`.

        ids: token ids (R, L) int64 with those around every text. lengths: (R,) int64, what counts
        of each row; None for all of it. The first token, where every text begins with the same, is
        given and not counted. Raises `ValueError` for ids outside the vocabulary or an empty row.
        """


def counted(ids: Tensor, lengths: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Ids (R, L) with 0 beyond the lengths, and lengths (R,), both int64 on the CPU.

    size: of the vocabulary. Raises `ValueError` for an id that counts and is outside it, for rows
    that are no rows, and for a length that no row can have.
    """
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"ids {tuple(ids.shape)} {ids.dtype}; expected (R, L) int64")
    rows, width = ids.shape
    ids = ids.detach().cpu().long()
    if lengths is None:
        lengths = torch.full((rows,), width)
    lengths = lengths.detach().cpu().long()
    if lengths.shape != (rows,) or (rows and not 1 <= int(lengths.min()) <= int(lengths.max())):
        raise ValueError(f"lengths {lengths.tolist()[:8]}; expected one of 1 and more a row")
    if rows and int(lengths.max()) > width:
        raise ValueError(f"a length of {int(lengths.max())}, and rows have {width} tokens")
    ids = ids.masked_fill(torch.arange(width) >= lengths[:, None], 0)
    if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(
            f"ids from {int(ids.min())} to {int(ids.max())}; expected ids below {size}, the size "
            "of the victim's vocabulary"
        )
    return ids, lengths


def sentences(texts: Iterable[str], tokens: Tokens) -> Iterator[list[int]]:
    """The token ids of public texts, with those around every text.

    Texts of more than 32 words are split at the ends of sentences, because a victim's texts are
    short, and what begins and ends them is worth knowing. A piece may still be of any length.
    """
    some: list[str] = []
    for text in texts:
        some += _split(text) if len(text.split()) > LONG else [text] * bool(text.strip())
        if len(some) >= TOGETHER:
            yield from _framed(some, tokens)
            some = []
    yield from _framed(some, tokens)


def _split(text: str) -> list[str]:
    """The sentences of a text, closing quotes and brackets with the sentence that they end."""
    parts = END_OF_SENTENCE.split(text)
    whole = [a + b for a, b in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    return [part for part in whole if part.strip()]


def _framed(texts: list[str], tokens: Tokens) -> Iterator[list[int]]:
    if not texts:
        return
    found = tokens.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    for ids in found:
        if ids:
            yield [*tokens.prefix, *ids, *tokens.suffix]
