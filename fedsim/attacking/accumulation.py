"""What each batch counts in a step of the optimizer that gradients of several are accumulated for.

The shares are of the numbers of examples in the step's batches, and of the largest number of
batches in a step of the training.
"""

import itertools
from collections.abc import Sequence


def averaged(sizes: Sequence[int], most: int) -> list[float]:
    """Shares where losses are divided by the number of batches in their step."""
    return [1 / max(1, len(sizes))] * len(sizes)


def divided(sizes: Sequence[int], most: int) -> list[float]:
    """Shares where losses are divided by a number that the last step need not reach."""
    return [1 / max(1, most)] * len(sizes)


def by_examples(sizes: Sequence[int], most: int) -> list[float]:
    """Shares where all examples of a step count the same."""
    return [size / max(1, sum(sizes)) for size in sizes]


def added(sizes: Sequence[int], most: int) -> list[float]:
    """Shares where losses are added up, so that the step is that of several means."""
    return [1.0] * len(sizes)


def most_batches(ends: Sequence[int]) -> int:
    """The largest number of batches in a step.

    Args:
        ends: The number of batches until the end of each step.
    """
    return max((last - first for first, last in itertools.pairwise((0, *ends))), default=0)
