"""What a language model is trained on: its logits from ids or word embeddings, and two losses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PADDING", "POINTS", "classification_loss", "logits", "masked_loss"]

PADDING = -100
"""A target of no account: padding, and what was not masked."""

POINTS = ("input", "embedding")
"""Where a language model takes inputs: token ids, or their word embeddings."""


def logits(module: nn.Module, inputs: Tensor, *, lengths: Any = None, at: str = "input") -> Tensor:
    """Logits (B, classes) of a classifier, (B, L, V) of a masked language model.

    inputs: token ids (B, L) int64; at "embedding" word embeddings (B, L, d), as they are before
    positions are added. lengths: (B,) int64, tokens of each; beyond them nothing is attended to.
    None: all are full. Raises `ValueError` for a model that computes nothing from embeddings.
    """
    if at not in POINTS:
        raise ValueError(f"no point '{at}' to feed text at; there are {POINTS}")
    count, size = inputs.shape[:2]
    ends = torch.as_tensor(size if lengths is None else lengths, device=inputs.device).expand(count)
    mask = (torch.arange(size, device=inputs.device) < ends[:, None]).long()
    fed = {"input_ids" if at == "input" else "inputs_embeds": inputs, "attention_mask": mask}
    score = getattr(module, "score", None)
    try:
        made = module(**fed) if score is None else module.base_model(**fed)  # type: ignore[operator]
    except TypeError as error:
        if at == "input":
            raise
        raise ValueError(
            f"{type(module).__name__} computes nothing from word embeddings, which this attack "
            f"feeds; token-leak feeds none. Its own words: {error}"
        ) from error
    if score is None:
        found: Tensor = made.logits
        return found
    # A decoder classifies by its last token, which transformers looks for by the padding's id and
    # so cannot find among embeddings.
    states: Tensor = made[0]
    last = (ends - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
    scores: Tensor = score(states.gather(1, last).squeeze(1))
    return scores


def classification_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over examples; target (B,) int64, or soft (B, classes)."""
    return functional.cross_entropy(logits(module, inputs, lengths=lengths, at=at), target)


def masked_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over the masked tokens of the batch (Devlin et al., 2019).

    target: (B, L) int64, -100 where nothing was masked; or soft (B, L, V), zeros there.
    """
    scores = logits(module, inputs, lengths=lengths, at=at)
    if target.is_floating_point():
        return -(target * scores.log_softmax(dim=2)).sum() / target.sum()
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PADDING)
