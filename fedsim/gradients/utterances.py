"""The gradient of a recogniser's head, from what enters it and what comes out, in closed form."""

import torch
from torch import Tensor

from fedsim.gradients.ctc import ctc_loss
from fedsim.gradients.head import head_calls
from fedsim.victim import VictimModel

__all__ = ["ctc_head_gradient", "head_passes"]


def ctc_head_gradient(
    features: Tensor, logits: Tensor, target: Tensor, *, create_graph: bool = False
) -> tuple[Tensor, Tensor]:
    """Gradients (K, C, h) and (K, C) of a linear head's weight and bias, of K guesses one by one.

    features: (K, T, h), what enters the head; logits: (K, T, C). target: (L,) or (K, L) int64, as
    `ctc_loss` takes it. With G = d CTC / d logits, which one backward pass through the loss alone
    gives for all, they are G' H and the sum of G over frames; nothing else is differentiated.
    create_graph: to differentiate them in turn, with respect to what features and logits came of.
    """
    rows = target.expand(len(logits), -1) if target.ndim == 1 else target
    scores = logits if create_graph else logits.detach().requires_grad_()
    with torch.enable_grad():
        losses = ctc_loss(scores, rows)
        (slopes,) = torch.autograd.grad(losses.sum(), scores, create_graph=create_graph)
    return slopes.transpose(1, 2) @ features, slopes.sum(dim=1)


def head_passes(model: VictimModel, frames: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (K, T, h) and outputs (K, T, C) of the head for utterances (K, T, F) of one length.

    target: (L,) int64, what the loss is asked with. Raises `ValueError` where the head is called
    other than once, or on anything but frames.
    """
    with head_calls(model) as passes:
        model.loss(frames, target.expand(len(frames), -1))
    shapes = [tuple(logits.shape) for _, logits in passes]
    if len(passes) != 1 or passes[0][1].ndim != 3:
        raise ValueError(
            f"the head '{model.head}' gives outputs {shapes or 'never'} for utterances "
            f"{tuple(frames.shape)}; expected labels of every frame, once"
        )
    return passes[0]
