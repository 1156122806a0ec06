"""Logits of a language model from token ids or word embeddings, and its training losses."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

PADDING = -100
"""The target that losses ignore: padding, and tokens that are not masked."""

POINTS = ("input", "embedding")
"""Where a language model takes inputs: token ids or their word embeddings."""


def logits(module: nn.Module, inputs: Tensor, *, lengths: Any = None, at: str = "input") -> Tensor:
    """Compute the logits of a language model.

    Args:
        module: The model.
        inputs: Token ids, int64 of shape (B, L), or at "embedding" word embeddings of shape (B, L,
            d) before positions are added.
        lengths: The number of tokens of each input, int64 of shape (B,); attention ignores what is
            beyond. None if all inputs are full.
        at: The kind of inputs, one of `POINTS`.

    Returns:
        Logits of shape (B, classes) for a classifier, (B, L, V) for a masked language model.

    Raises:
        ValueError: The model cannot start from word embeddings.
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
            f"{type(module).__name__} cannot start from word embeddings, which this attack needs; "
            f"token-leak does not need them. The model's error: {error}"
        ) from error
    if score is None:
        found: Tensor = made.logits
        return found
    # A decoder classifies by its last token. transformers finds it by the id of the padding, which
    # embeddings do not have.
    states: Tensor = made[0]
    last = (ends - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
    scores: Tensor = score(states.gather(1, last).squeeze(1))
    return scores


def classification_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over examples.

    Args:
        module: The model.
        inputs: Inputs as of `logits`.
        target: Labels, int64 of shape (B,), or soft labels of shape (B, classes).
        lengths: Numbers of tokens as of `logits`.
        at: The kind of inputs.
    """
    return functional.cross_entropy(logits(module, inputs, lengths=lengths, at=at), target)


def masked_loss(
    module: nn.Module, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
) -> Tensor:
    """Cross-entropy, mean over the masked tokens of the batch (Devlin et al., 2019).

    Args:
        module: The model.
        inputs: Inputs as of `logits`.
        target: Token ids, int64 of shape (B, L), -100 where nothing is masked; or soft targets of
            shape (B, L, V), zero there.
        lengths: Numbers of tokens as of `logits`.
        at: The kind of inputs.
    """
    scores = logits(module, inputs, lengths=lengths, at=at)
    if target.is_floating_point():
        return -(target * scores.log_softmax(dim=2)).sum() / target.sum()
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten(), ignore_index=PADDING)
