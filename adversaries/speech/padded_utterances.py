"""Utterances of several victims, padded to one length, so that a model sees all in one pass."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedsim import VictimModel
from fedsim.gradients import head_passes

ALIKE = 1e-4
"""Tolerance between logits of an utterance that two kinds of pass compute."""


def padded(
    utterances: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pad utterances (T, F) and their labels (L,) int64 to the longest.

    Returns:
        Frames (K, T, F) padded with 0, labels (K, L) padded with -100, and the numbers of frames
        (K,) int64; None if all are alike.
    """
    frames = pad_sequence(list(utterances), batch_first=True)
    labels = pad_sequence(list(targets), batch_first=True, padding_value=-100)
    counts = [len(one) for one in utterances]
    alike = min(counts) == max(counts)
    return frames, labels, None if alike else torch.tensor(counts, device=frames.device)


@torch.no_grad()
def ignores_padding(
    model: VictimModel, utterances: Sequence[Tensor], targets: Sequence[Tensor]
) -> bool:
    """Whether a padded batch gives each utterance the logits that it has alone, up to rounding.

    It does not if the model's outputs depend on the padding, as those of a recogniser that does not
    take lengths may, or if there are fewer logits than frames.

    Args:
        model: The victims' model.
        utterances: An utterance (T, F) of each victim.
        targets: The labels (L,) int64 of each.
    """
    frames, labels, lengths = padded(utterances, targets)
    try:
        _, together = head_passes(model, frames, labels, lengths)
    except Exception:  # such as CTC's, of logits that are fewer than the frames
        return False
    for own, target, found in zip(utterances, targets, together, strict=True):
        _, (alone,) = head_passes(model, own[None], target)
        if len(alone) != len(own):
            return False
        if not torch.allclose(found[: len(own)], alone, rtol=0, atol=ALIKE):
            return False
    return True
