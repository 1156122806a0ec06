"""One-to-one assignment of claims to originals by the Hungarian algorithm."""

from collections.abc import Sequence


def assigned(cost: Sequence[Sequence[float]]) -> list[int]:
    """Assign at most one claim to each original so that the total cost is least.

    Args:
        cost: For each original the cost of each claim; finite.

    Returns:
        For each original the index of its claim, or -1 if there are fewer claims than originals.
    """
    from scipy.optimize import linear_sum_assignment

    if not cost:
        return []
    found = [-1] * len(cost)
    for original, claim in zip(*linear_sum_assignment(cost), strict=True):
        found[int(original)] = int(claim)
    return found
