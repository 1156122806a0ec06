"""From a CTC model's scores of every frame to labels: the best path, and prefix beam search."""

import math

import torch
from torch import Tensor

from fedsim.gradients import BLANK

__all__ = ["best_path", "prefix_beams"]

Prefix = tuple[int, ...]
Beams = dict[Prefix, tuple[float, float]]


def best_path(log_probs: Tensor) -> Tensor:
    """The likeliest label of every frame (T, C), repetitions merged and blanks left out; (L,)."""
    path = log_probs.argmax(dim=1)
    new = torch.ones_like(path, dtype=torch.bool)
    new[1:] = path[1:] != path[:-1]
    return path[new & (path != BLANK)]


def prefix_beams(log_probs: Tensor, width: int) -> Tensor:
    """The likeliest labels (L,) int64, all their alignments together, by prefix beam search.

    log_probs: (T, C) log-probabilities. width: prefixes kept from frame to frame; exact once it is
    no less than their number. No language model. Graves and Jaitly (ICML 2014), section 3.2.
    """
    # Of every prefix: log-probability that the last frame was a blank, and that it was a label.
    beams: Beams = {(): (0.0, -math.inf)}
    for frame in log_probs.double().tolist():
        grown: Beams = {}
        for prefix, (blank, label) in beams.items():
            last, either = prefix[-1] if prefix else BLANK, _sum(blank, label)
            _add(grown, prefix, either + frame[BLANK], label + frame[last])
            for new, score in enumerate(frame):
                if new != BLANK:
                    # Directly behind the same label it would be read as one.
                    before = blank if new == last else either
                    _add(grown, (*prefix, new), -math.inf, before + score)
        best = sorted(grown, key=lambda one: _sum(*grown[one]), reverse=True)
        beams = {prefix: grown[prefix] for prefix in best[:width]}
    return torch.tensor(next(iter(beams)), dtype=torch.int64, device=log_probs.device)


def _add(beams: Beams, prefix: Prefix, blank: float, label: float) -> None:
    before = beams.get(prefix, (-math.inf, -math.inf))
    beams[prefix] = (_sum(before[0], blank), _sum(before[1], label))


def _sum(a: float, b: float) -> float:
    """The logarithm of the sum of two probabilities."""
    low, high = min(a, b), max(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
