"""From a CTC model's scores of every frame to labels: the best path, and the best of a beam.

Beams are flashlight's, through torchaudio: compiled, without dependencies, with wheels for Python
3.11 and 3.12. pyctcdecode, the other decoder in wide use, is pinned below numpy 2.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from fedsim import libraries
from fedsim.errors import DataError
from fedsim.gradients import BLANK

__all__ = ["beam_decoder", "best_of_beam", "best_path"]


def best_path(log_probs: Tensor) -> Tensor:
    """The likeliest label of every frame (T, C), repetitions merged and blanks left out; (L,)."""
    path = log_probs.argmax(dim=1)
    new = torch.ones_like(path, dtype=torch.bool)
    new[1:] = path[1:] != path[:-1]
    return path[new & (path != BLANK)]


def best_of_beam(log_probs: Tensor, width: int) -> Tensor:
    """The likeliest labels (L,) int64, all their alignments together, among those of a beam.

    log_probs: (T, C) log-probabilities. width: hypotheses kept from frame to frame; exact once it
    is no less than twice the number of prefixes. No language model. Graves and Jaitly (ICML 2014),
    section 3.2. None of no frames, and where a model that diverged has no likeliest. Raises
    `DataError` without flashlight-text.
    """
    found: list[Any] = []
    if len(log_probs):
        decode = beam_decoder(log_probs.shape[1], width)
        (found,) = decode(log_probs.float().cpu().contiguous()[None])
    labels = found[0].tokens if found else torch.zeros(0)
    return labels.to(log_probs.device, torch.int64)


@functools.lru_cache(maxsize=8)
def beam_decoder(classes: int, width: int) -> Any:
    """torchaudio's decoder of emissions (B, T, classes); `DataError` without flashlight-text."""
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
    # The blank stands for silence as well: another label would be added at both ends.
    return make(
        lexicon=None,
        tokens=names,
        blank_token=names[BLANK],
        sil_token=names[BLANK],
        beam_size=width,
        log_add=True,
    )
