"""Gradient accumulation: the weight of each batch's loss in one step of the optimizer.

Each function takes the numbers of examples in the step's batches, and the largest number of batches
in any step of the training. It returns a weight for each batch.
"""

import itertools
from collections.abc import Sequence


def averaged(sizes: Sequence[int], most: int) -> list[float]:
    """Weights if each loss is divided by the number of batches in its step."""
    return [1 / max(1, len(sizes))] * len(sizes)


def divided(sizes: Sequence[int], most: int) -> list[float]:
    """Weights if each loss is divided by the same number, also in a shorter last step."""
    return [1 / max(1, most)] * len(sizes)


def by_examples(sizes: Sequence[int], most: int) -> list[float]:
    """Weights if all examples of a step count the same."""
    return [size / max(1, sum(sizes)) for size in sizes]


def added(sizes: Sequence[int], most: int) -> list[float]:
    """Weights if losses are added up and not averaged."""
    return [1.0] * len(sizes)


def most_batches(ends: Sequence[int]) -> int:
    """The largest number of batches in a step.

    Args:
        ends: The number of batches until the end of each step.
    """
    return max((last - first for first, last in itertools.pairwise((0, *ends))), default=0)
