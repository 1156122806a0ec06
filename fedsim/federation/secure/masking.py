"""Fixed point and pairwise masks: vectors that say nothing one by one, and add up to the sum.

After Bonawitz et al. (Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS
2017): clients i < j share a mask, i adds it, j subtracts it, and in the sum of all clients every
mask is gone. After Bell et al. (Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
CCS 2020): a client shares masks with O(log m) of the m clients instead of all.

A vector is what a client sends, flat: values (size,) float64, masked (size,) uint64. Arithmetic
is modulo 2^64, in which numpy's uint64 wraps around.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import UpdateRefused
from fedsim.seeds import numpy_generator

__all__ = [
    "RESOLUTION",
    "connected",
    "decode",
    "encode",
    "flatten",
    "mask",
    "neighbours",
    "reach",
    "split",
]

Vector = NDArray[np.float64]
Masked = NDArray[np.uint64]

RESOLUTION = 2.0**-36
"""What one unit of the fixed point is worth: sums up to 1.3e8, each value to within 7.3e-12."""

LARGEST_SUM = 2.0**63 * RESOLUTION


def flatten(arrays: Mapping[str, NDArray[np.floating]], *more: float) -> Vector:
    """Arrays of any shape, by sorted name, after `more` numbers: one vector."""
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in sorted(arrays)]
    return np.concatenate([np.asarray(more, dtype=np.float64), *parts])


def split(values: Vector, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Vector]:
    """The arrays behind a vector, with the shapes they had; inverse of `flatten`."""
    names = sorted(shapes)
    ends = np.cumsum([math.prod(shapes[name]) for name in names])
    parts = np.split(values, ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}


def encode(values: Vector, weight: int, clients: int) -> Masked:
    """weight * values in fixed point, so that a sum over `clients` cannot overflow.

    Raises `UpdateRefused` for values that do not fit.
    """
    weighted = values * weight
    limit = LARGEST_SUM / clients
    largest = float(np.abs(weighted).max(initial=0.0))
    if not largest < limit:
        raise UpdateRefused(
            f"it holds {largest / weight:.1e}, times {weight} examples; the fixed point of "
            f"secure aggregation takes such products up to {limit:.1e} from {clients} clients"
        )
    return np.rint(weighted / RESOLUTION).astype(np.int64).view(np.uint64)


def decode(total: Masked) -> Vector:
    """The sum of weighted values behind the sum of encoded ones."""
    return total.view(np.int64).astype(np.float64) * RESOLUTION


def mask(seed: int, round: int, client: int, partners: Iterable[int], size: int) -> Masked:
    """The sum of the masks that a client shares with some others, (size,) uint64, signed.

    Each is uniform over all uint64, derived from (seed, round, pair).
    """
    total = np.zeros(size, dtype=np.uint64)
    for partner in partners:
        low, high = sorted((client, partner))
        rng = numpy_generator(seed, "mask", round, low, high)
        shared = rng.integers(0, 2**64, size, dtype=np.uint64)
        total = total + shared if client == low else total - shared
    return total


def reach(clients: int) -> int:
    """With how many clients to either side, on a ring of so many, a client shares masks."""
    return min(math.ceil(math.log2(clients)), clients // 2)


def neighbours(clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """By client, with whom it shares masks: the `reach` next to it on a ring; all, where few."""
    ring, near = sorted(clients), reach(len(clients))
    found = {}
    for place, client in enumerate(ring):
        around = {ring[(place + step) % len(ring)] for step in range(-near, near + 1)}
        found[client] = tuple(sorted(around - {client}))
    return found


def connected(graph: Mapping[int, Collection[int]], among: Collection[int]) -> bool:
    """Whether masks tie all of `among` together.

    If not, some of them add up without the others: masks hide less than the whole sum.
    """
    left = set(among)
    queue = [left.pop()] if left else []
    while queue:
        found = left & set(graph[queue.pop()])
        left -= found
        queue += found
    return not left
