"""What is known of the texts of another Flower project: tokens, word embeddings, padding, loss."""

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.errors import DataError
from fedsim.records import Reconstruction, Truth
from fedsim.spec import TextSpec, Tokens
from fedsim.task import evaluating
from fedsim.tasks.classification import cross_entropy
from fedsim.tasks.text.examples import render_texts
from fedsim.tasks.text.languages.language import classification_loss, positions
from fedsim.tasks.text.languages.tokenizers import describe_tokenizer, load_tokenizer

LONGEST = 512
"""Largest number of tokens of a text, if the model has no positions that limit it."""


class Numbers:
    """Stands in for a tokenizer that nobody knows: a token is written as its number."""

    def decode(self, ids: Iterable[int]) -> str:
        """Write token ids with spaces between them."""
        return " ".join(map(str, ids))

    def __call__(self, text: str, **settings: Any) -> dict[str, list[int]]:
        """Read token ids from such a text; other words are left out."""
        return {"input_ids": [int(one) for one in text.split() if one.isdecimal()]}


def text_spec(module: nn.Module, example: Tensor, classes: int) -> TextSpec | None:
    """Describe the texts that a classifier takes.

    A Hugging Face model that was loaded from a folder, or from a name in the cache, has its own
    tokenizer there. Of any other model, tokens are written as their numbers.

    Args:
        module: The classifier.
        example: Token ids of one text, any integers of shape (L,).
        classes: The number of classes.

    Returns:
        The description; None if no word embeddings receive the ids.
    """
    layer = _word_embeddings(module, example)
    if layer is None:
        return None
    embedding = next(name for name, one in module.named_parameters() if one is layer.weight)
    size, limit = layer.num_embeddings, positions(module)
    longest = max(len(example), LONGEST) if limit is None else limit
    padding = padding_of(module)
    tokens = _own_tokens(module, example, size, longest, embedding)
    if tokens is None:
        tokens = Tokens(
            pieces=tuple(map(str, range(size))),
            special={},
            marks=frozenset(),
            prefix=(),
            suffix=(),
            longest=longest,
            embedding=embedding,
            tokenizer=Numbers(),
        )
    if padding is not None:
        marks = tokens.marks | {padding}
        tokens = replace(tokens, special={**tokens.special, "pad": padding}, marks=marks)
    return TextSpec(classes, tokens=tokens)


def padding_of(module: nn.Module) -> int | None:
    """The id of the padding, by the model's configuration or its embeddings; None without one."""
    padding = getattr(getattr(module, "config", None), "pad_token_id", None)
    if padding is not None:
        return int(padding)
    layers = [one for one in module.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)]
    return next((one.padding_idx for one in layers if one.padding_idx is not None), None)


def takes_embeddings(module: nn.Module, parameters: Iterable[str]) -> bool:
    """Whether a classifier is one of Hugging Face's, and can start from word embeddings."""
    return hasattr(module, "get_input_embeddings") and "inputs_embeds" in parameters


def text_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy of a Hugging Face classifier, mean over examples.

    Args:
        module: The model, which masks padding by its id.
        inputs: Token ids, int64 of shape (B, L), or at "embedding" word embeddings (B, L, d).
        target: Labels, int64 of shape (B,), or soft labels of shape (B, classes).
        lengths: Numbers of tokens (B,); None: all that are no padding count.
        at: "input" or "embedding".
    """
    if lengths is None and at == "input":
        return cross_entropy(module, inputs, target)
    return classification_loss(module, inputs, target, lengths=lengths, at=at)


def shown_texts(claimed: Reconstruction, truth: Truth, spec: TextSpec) -> dict[str, bytes]:
    """Original texts and what was matched to each, one a line; claims alone if nobody knows them.

    Returns:
        The files by name.
    """
    if truth.tokens is not None:
        return render_texts(claimed, truth, spec)
    lines = [*(claimed.text or ())]
    if claimed.token_counts is not None:
        lines = [spec.tokens.spell(sorted(claimed.token_counts))]
    text = "".join(" ".join(one.split()) + "\n" for one in lines)
    return {"reconstruction.txt": text.encode(errors="replace")} if text else {}


def _word_embeddings(module: nn.Module, example: Tensor) -> nn.Embedding | nn.EmbeddingBag | None:
    """The layer that receives the token ids; of several, the first that is used."""
    with contextlib.suppress(AttributeError, NotImplementedError):
        own = module.get_input_embeddings()  # type: ignore[operator]
        if isinstance(own, nn.Embedding):
            return own
    received = list[nn.Embedding | nn.EmbeddingBag]()

    def keep(layer: Any, args: tuple[Any, ...]) -> None:
        ids = args[0] if args and isinstance(args[0], Tensor) else torch.empty(0)
        if ids.numel() == example.numel() and torch.equal(ids.reshape(-1), example.reshape(-1)):
            received.append(layer)

    hooks = [
        one.register_forward_pre_hook(keep)
        for one in module.modules()
        if isinstance(one, nn.Embedding | nn.EmbeddingBag)
    ]
    try:
        with evaluating(module):
            module(example[None])
    finally:
        for hook in hooks:
            hook.remove()
    return received[0] if received else None


def _own_tokens(
    module: nn.Module, example: Tensor, size: int, longest: int, embedding: str
) -> Tokens | None:
    """The tokens of a model's own tokenizer; None if it is not on this machine, or too large."""
    place = getattr(getattr(module, "config", None), "name_or_path", "")
    if not place:
        return None
    try:
        tokenizer = load_tokenizer(str(place))
        if len(tokenizer) > size:
            return None
        tokens = describe_tokenizer(tokenizer, size, longest, embedding)
    except DataError:
        return None
    ids = tuple(example.tolist())
    framed = ids[: len(tokens.prefix)] == tokens.prefix and {*tokens.suffix} <= {*ids}
    return tokens if framed else replace(tokens, prefix=(), suffix=())
