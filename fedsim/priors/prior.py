"""The base class of language priors, and the sentences to which they are fitted."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fedsim.records import Tokens

LONG = 32
"""Number of words above which a text is split into sentences, because victims' texts are short."""

END_OF_SENTENCE = re.compile(r"""(?<=[.!?…])(["'”’)\]]*)\s+""")
TOGETHER = 4096
"""Number of texts that are tokenized at once."""


class LanguagePrior(ABC):
    """An estimate of how likely a text is, from public data.

    Attributes:
        description: What the prior is, for diagnostics.
        deviation: Whether its tokens differ from the victim's, for which LAMP has a model
            (Balunovic et al., NeurIPS 2022, section 4).
    """

    description: str
    deviation: bool = False

    @abstractmethod
    def surprise(self, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the mean negative log-likelihood per token.

        If every text begins with the same token, that token is given and not counted.

        Args:
            ids: Token ids (R, L) int64, with those that frame every text.
            lengths: Number of tokens that count in each row, (R,) int64; None: all.

        Returns:
            Means in nats, (R,) float32, on the device of `ids`.

        Raises:
            ValueError: An id is outside the vocabulary, or a row is empty.
        """


def counted(ids: Tensor, lengths: Tensor | None, size: int) -> tuple[Tensor, Tensor]:
    """Check token ids and their lengths.

    Args:
        ids: Token ids (R, L).
        lengths: Number of tokens that count in each row, (R,); None: all.
        size: Size of the vocabulary.

    Returns:
        Ids with 0 beyond the lengths, and lengths, both int64 on the CPU.

    Raises:
        ValueError: The ids are not (R, L), an id that counts is outside the vocabulary, or a length
            does not fit a row.
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
    """Split public texts into sentences and tokenize them.

    Texts of more than 32 words are split at the ends of sentences, because a victim's texts are
    short, and a prior has to know how they begin and end. A sentence may have any length.

    Args:
        texts: Public texts.
        tokens: The victim's tokens.

    Yields:
        Token ids of each sentence, with those that frame every text.
    """
    some: list[str] = []
    for text in texts:
        some += _split(text) if len(text.split()) > LONG else [text] * bool(text.strip())
        if len(some) >= TOGETHER:
            yield from _framed(some, tokens)
            some = []
    yield from _framed(some, tokens)


def _split(text: str) -> list[str]:
    """Split a text into sentences; closing quotes and brackets stay with the sentence."""
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
