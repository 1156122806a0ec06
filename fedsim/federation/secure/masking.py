"""Fixed-point vectors under pairwise masks, which cancel in the sum of all clients.

After Bonawitz et al. (Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS
2017): clients i < j share a mask, i adds it, j subtracts it, and in the sum of all clients every
mask is gone. After Bell et al. (Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
CCS 2020): a client shares masks with O(log m) of the m clients instead of all.

A client's vector is flat: values of shape (size,), float64; masked, of shape (size,), uint64.
Arithmetic is modulo 2^64, as numpy's uint64 wraps around.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import UpdateRefused
from fedsim.seeds import numpy_generator

Vector = NDArray[np.float64]
Masked = NDArray[np.uint64]

RESOLUTION = 2.0**-36
"""One unit of the fixed point: sums reach 1.3e8, and a value is exact to within 7.3e-12."""

LARGEST_SUM = 2.0**63 * RESOLUTION


def flatten(arrays: Mapping[str, NDArray[np.floating]], *more: float) -> Vector:
    """Flatten arrays of any shape, by sorted name, into one vector that begins with `more`."""
    parts = [np.asarray(arrays[name], dtype=np.float64).ravel() for name in sorted(arrays)]
    return np.concatenate([np.asarray(more, dtype=np.float64), *parts])


def split(values: Vector, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Vector]:
    """Split a vector into arrays of their shapes, by sorted name; the inverse of `flatten`."""
    names = sorted(shapes)
    ends = np.cumsum([math.prod(shapes[name]) for name in names])
    parts = np.split(values, ends[:-1])
    return {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}


def encode(values: Vector, weight: int, clients: int) -> Masked:
    """Encode weight * values in fixed point.

    Args:
        values: Of shape (size,), float64.
        weight: The number of examples.
        clients: The number of vectors that are added up.

    Returns:
        The encoded values, of shape (size,), uint64.

    Raises:
        UpdateRefused: A sum over `clients` could overflow.
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
    """The sum of weighted values, from the sum of their encodings."""
    return total.view(np.int64).astype(np.float64) * RESOLUTION


def mask(seed: int, round: int, client: int, partners: Iterable[int], size: int) -> Masked:
    """The signed sum of the masks that a client shares with its partners, of shape (size,), uint64.

    Each mask is uniform over all uint64, and is derived from (seed, round, pair).
    """
    total = np.zeros(size, dtype=np.uint64)
    for partner in partners:
        low, high = sorted((client, partner))
        rng = numpy_generator(seed, "mask", round, low, high)
        shared = rng.integers(0, 2**64, size, dtype=np.uint64)
        total = total + shared if client == low else total - shared
    return total


def reach(clients: int) -> int:
    """The number of clients to each side, on a ring of clients, that a client shares masks with."""
    return min(math.ceil(math.log2(clients)), clients // 2)


def neighbours(clients: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The partners of each client: the `reach` clients to each side on a ring, or all if few."""
    ring, near = sorted(clients), reach(len(clients))
    found = {}
    for place, client in enumerate(ring):
        around = {ring[(place + step) % len(ring)] for step in range(-near, near + 1)}
        found[client] = tuple(sorted(around - {client}))
    return found


def connected(graph: Mapping[int, Collection[int]], among: Collection[int]) -> bool:
    """Whether the graph of shared masks connects all of `among`.

    If not, masks cancel within each component, and the components' sums are revealed.
    """
    left = set(among)
    queue = [left.pop()] if left else []
    while queue:
        found = left & set(graph[queue.pop()])
        left -= found
        queue += found
    return not left
