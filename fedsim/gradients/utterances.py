"""The gradient of a speech recogniser's head under CTC, from the head's inputs and outputs."""

import torch
from torch import Tensor

from fedsim.gradients.ctc import ctc_loss
from fedsim.gradients.head import head_calls
from fedsim.victim import VictimModel


def ctc_head_gradient(
    features: Tensor, logits: Tensor, target: Tensor, *, create_graph: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the gradients of a linear head under CTC for K utterances, independently.

    With G = d CTC / d logits, the gradients are G' H and the sum of G over frames. Only the loss is
    differentiated, not the rest of the model.

    Args:
        features: Inputs H of the head, (K, T, h).
        logits: Outputs of the head, (K, T, C).
        target: Labels (L,) or (K, L) int64, as for `ctc_loss`.
        create_graph: Whether the gradients are differentiated with respect to features and logits.

    Returns:
        Gradients of the weight (K, C, h) and of the bias (K, C).
    """
    rows = target.expand(len(logits), -1) if target.ndim == 1 else target
    scores = logits if create_graph else logits.detach().requires_grad_()
    with torch.enable_grad():
        losses = ctc_loss(scores, rows)
        (slopes,) = torch.autograd.grad(losses.sum(), scores, create_graph=create_graph)
    return slopes.transpose(1, 2) @ features, slopes.sum(dim=1)


def head_passes(model: VictimModel, frames: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the inputs and outputs of the head for utterances of one length.

    Args:
        model: The victim's model.
        frames: Utterances (K, T, F).
        target: Labels (L,) int64 with which the loss is called.

    Returns:
        Inputs (K, T, h) and outputs (K, T, C).

    Raises:
        ValueError: The head is not called exactly once, or not on frames.
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
