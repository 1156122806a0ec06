"""Training examples from texts: split, token ids, masked words, and an attacker's guesses."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.errors import DataError
from fedsim.metrics import read
from fedsim.records import Reconstruction, Tokens, Truth
from fedsim.spec import TextSpec
from fedsim.tasks.partitioned import claim_labels, render_lines
from fedsim.tasks.text.data import Texts
from fedsim.tasks.text.languages.language import PADDING
from fedsim.tasks.wordpieces import frequencies


def partition_labels(name: str, texts: Texts, index: Tensor, *, whose: bool) -> NDArray[Any]:
    """The labels or the senders of texts as integers, for a partition.

    Args:
        name: The data set's name, for the error message.
        texts: The data set.
        index: Which texts, int64.
        whose: Take senders instead of labels.

    Raises:
        DataError: The data set has no senders.
    """
    if not whose:
        return np.asarray(texts.labels[index].numpy())
    if texts.senders is None:
        raise DataError(
            f"data '{name}' does not say whose a text is; expected a column sender, author or "
            'user, or another task.partition ("iid")'
        )
    return np.asarray(np.unique(texts.senders, return_inverse=True)[1][index.numpy()])


def indices_not_in(texts: Sequence[str], others: Iterable[str]) -> list[int]:
    """The positions of the texts that equal none of the others, apart from case and spaces."""
    known = {normalised(text) for text in others}
    return [i for i, text in enumerate(texts) if normalised(text) not in known]


def normalised(text: str) -> str:
    """A key that is equal for texts which differ in case and spaces only."""
    return " ".join(text.lower().split())


def encode_texts(
    name: str, texts: Sequence[str], index: Sequence[int], tokens: Tokens, longest: int | None
) -> dict[int, list[int]]:
    """Encode texts as token ids, leaving out those that are too long.

    Args:
        name: The data set's name, for error messages.
        texts: All texts.
        index: Which texts.
        tokens: The tokenizer.
        longest: The largest number of tokens; None for what the model takes.

    Returns:
        The token ids of the texts that are short enough, by index.

    Raises:
        DataError: `longest` is None and a text is longer than the model takes, or the tokenizer
            knows no word of a text.
    """
    found = tokens.tokenizer([texts[i] for i in index], verbose=False)["input_ids"]
    unknown = tokens.special.get("unk")
    for at, one in zip(index, found, strict=True):
        # Spelling is slow, and only these ids can give an empty text.
        doubtful = unknown is None or unknown in one or len(one) < 4
        if doubtful and not tokens.spell(one):
            raise DataError(
                f"data '{name}': the tokenizer knows no word of text {at} ({texts[at][:40]!r}). "
                "Leave it out, or choose another model"
            )
        if longest is None and len(one) > tokens.longest:
            raise DataError(
                f"data '{name}': text {at} has {len(one)} tokens, and the model takes "
                f"{tokens.longest}. Leave out longer ones with task.longest = {tokens.longest}, or "
                "choose a model that takes more"
            )
    most = longest or tokens.longest
    return {at: one for at, one in zip(index, found, strict=True) if len(one) <= most}


def cut_texts(
    name: str, texts: Sequence[str], encoded: Mapping[int, Sequence[int]], tokens: Tokens
) -> list[str]:
    """A warning of texts that hold characters the tokenizer does not know.

    Args:
        name: The data set's name.
        texts: All texts.
        encoded: The token ids of those in use, by index.
        tokens: The tokenizer.
    """
    unknown = tokens.special.get("unk")
    cut = [at for at, ids in encoded.items() if unknown in ids]
    if not cut:
        return []
    return [
        f"data '{name}': {len(cut)} of {len(encoded)} texts have characters that the tokenizer "
        "does not know. The model reads [UNK] there, and the reference texts that attacks are "
        f"scored against lack them (text {min(cut)}: {texts[min(cut)]!r:.60})"
    ]


def mask_tokens(
    ids: Tensor, share: float, tokens: Tokens, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mask some tokens of a text for masked language modelling.

    Args:
        ids: Token ids, int64 of shape (L,). Special tokens are never masked.
        share: The share of tokens to mask; at least one is.
        tokens: The tokenizer.
        rng: Source of randomness.

    Returns:
        The ids with masks, and the targets of shape (L,): masked tokens, -100 elsewhere.
    """
    free = torch.tensor([int(i) not in tokens.marks for i in ids]).nonzero().flatten()
    count = max(1, round(share * len(free)))
    chosen = free[torch.randperm(len(free), generator=rng)[:count]]
    target = torch.full_like(ids, PADDING)
    target[chosen] = ids[chosen]
    return ids.index_fill(0, chosen, tokens.special["mask"]), target


def token_frequencies(texts: Iterable[str], tokens: Tokens) -> Tensor:
    """The share of each token in texts, float32 of shape (V,)."""
    encoded = tokens.tokenizer(list(texts), verbose=False)["input_ids"]
    counts = Counter(piece for ids in encoded for piece in tokens.bare(ids))
    return frequencies(counts, len(tokens.pieces))


def random_guess(
    truth: Truth,
    tokens: Tokens,
    weights: Tensor,
    shares: Tensor,
    rng: torch.Generator,
    *,
    scores: Tensor | None = None,
) -> Reconstruction:
    """A random guess: labels and texts of the true lengths.

    Args:
        truth: The victim's examples; only their numbers and lengths are used.
        tokens: The tokenizer.
        weights: Weights by which tokens are drawn, of shape (V,).
        shares: Weights by which labels are drawn, of shape (classes,).
        rng: Source of randomness.
        scores: Scores of the labels, of shape (classes,); drawn from N(0, 1) by default.
    """
    count = 0 if truth.labels is None else len(truth.labels)
    labels = torch.empty(0, dtype=torch.int64)
    if count:
        labels = torch.multinomial(shares, count, replacement=True, generator=rng)
    scores = torch.randn(len(shares), generator=rng) if scores is None else scores
    frame, drawn = len(tokens.prefix) + len(tokens.suffix), list[Tensor]()
    for length in truth.lengths or ():
        inner = torch.multinomial(weights, max(1, length - frame), replacement=True, generator=rng)
        parts = (torch.tensor(tokens.prefix), inner, torch.tensor(tokens.suffix))
        drawn.append(torch.cat([part.long() for part in parts]))
    return claim_labels(
        labels,
        scores,
        tokens=drawn,
        token_counts=dict(Counter(tokens.bare(torch.cat(drawn).tolist()) if drawn else [])),
        text=[tokens.spell(one.tolist()) for one in drawn],
    )


def render_texts(claimed: Reconstruction, truth: Truth, spec: TextSpec) -> dict[str, bytes]:
    """Files that show original texts and what was matched to each, one text a line.

    Returns:
        The files by name; empty if nothing readable was claimed.
    """
    lines = list[str]()
    if claimed.tokens is not None or claimed.text is not None:
        lines = read(claimed, truth, spec)
    elif claimed.token_counts is not None:
        spelled = [spec.tokens.spell([i]) for i in sorted(claimed.token_counts)]
        lines = [" ".join(spelled)]
    return render_lines(truth.text, lines)
