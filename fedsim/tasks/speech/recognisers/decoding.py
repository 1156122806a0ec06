"""CTC decoding: from the scores of every frame to labels, by the best path or by beam search.

Beam search is flashlight's, called through torchaudio. It is compiled, has no dependencies, and has
wheels for Python 3.11 and 3.12. (pyctcdecode, the other decoder in wide use, is pinned below numpy
2.)
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.gradients import BLANK


def best_path(log_probs: Tensor) -> Tensor:
    """Decode by the most probable label of every frame (best-path decoding).

    Repeated labels are merged and blanks are removed.

    Args:
        log_probs: Log-probabilities, or any scores, of shape (T, C).

    Returns:
        The labels, int64 of shape (L,).
    """
    path = log_probs.argmax(dim=1)
    new = torch.ones_like(path, dtype=torch.bool)
    new[1:] = path[1:] != path[:-1]
    return path[new & (path != BLANK)]


def best_of_beam(log_probs: Tensor, width: int) -> Tensor:
    """Decode by beam search without a language model (Graves and Jaitly, ICML 2014, section 3.2).

    The probability of a label sequence is summed over its alignments. The search is exact if the
    beam is at least twice as wide as there are prefixes.

    Args:
        log_probs: Log-probabilities of shape (T, C).
        width: The number of hypotheses kept from frame to frame.

    Returns:
        The most probable labels, int64 of shape (L,). They are empty if there are no frames, or if
        no hypothesis is left because the model has diverged.

    Raises:
        DataError: flashlight-text is not installed.
    """
    found: list[Any] = []
    if len(log_probs):
        decode = beam_decoder(log_probs.shape[1], width)
        (found,) = decode(log_probs.float().cpu().contiguous()[None])
    labels = found[0].tokens if found else torch.zeros(0)
    return labels.to(log_probs.device, torch.int64)


@functools.lru_cache(maxsize=8)
def beam_decoder(classes: int, width: int) -> Any:
    """Make torchaudio's beam-search decoder of emissions of shape (B, T, classes).

    Args:
        classes: The number of labels.
        width: The number of hypotheses kept from frame to frame.

    Raises:
        DataError: flashlight-text is not installed.
    """
    libraries.torchaudio()
    try:
        make = importlib.import_module("torchaudio.models.decoder").ctc_decoder
    except (ImportError, RuntimeError) as error:
        raise DataError(
            f"task.model.beam = {width} needs torchaudio and flashlight-text: "
            f"{libraries.installing('beam')}; or leave it at 1, which needs neither "
            f"({libraries.brief(error)})"
        ) from error
    names = [str(label) for label in range(classes)]
    # The blank is also the label of silence; another label would be added at both ends.
    return make(
        lexicon=None,
        tokens=names,
        blank_token=names[BLANK],
        sil_token=names[BLANK],
        beam_size=width,
        log_add=True,
    )
