"""Separates the examples in a layer's gradient, one after the other."""

import torch
from torch import Tensor

from adversaries.inputs.spear.directions import unit
from adversaries.inputs.spear.half_space import input_that_fires
from adversaries.inputs.spear.low_rank import LowRank
from adversaries.inputs.spear.robust_regression import explain

AGREE = 0.97
"""Share of units at which the signs of Z and the zeros of dZ agree, for an example."""

NEAR_ZERO = 1e-4
"""Outputs below this share of the median count as neither positive nor negative."""

ALIKE = 1 - 1e-4
"""Cosine above which two directions are one."""

GAP = 1e-4
"""Second smallest singular value of the rows that vanish for one example alone."""

EMPTY = 1e-5
"""Rows below this share of the median length are empty."""

ROUNDED = (0.0, 1e-3, 0.02)
"""Values, relative to the mean, that count as zeros of an approximate direction, in turn."""

SPARE = 4
"""Zeros that a column of dZ must have beyond the B - 1 that any direction can have."""

ALONE = 0.9999
"""Leverage above which a zero is one that a direction was chosen to have."""

SEPARATED = 0.99
"""Share of units that one input can make fire as a found direction says."""

TRIED = 40
"""Candidates of a search that are looked at."""

CLEARLY = (0.3, 0.1, 0.03)
"""Shares of the median below which negative outputs are trusted, of approximate coordinates."""

CHUNK = 64
"""Candidates that are examined at a time."""

REACHES = (1.5, 3.0, 6.0)
"""How many units, relative to the open directions, first determine their coordinates."""


class Peeling:
    """The examples found so far, and the rest of the gradient.

    A unit that fires for a single example has that example's coordinates a as its row of L, up to
    a factor. The signs of the outputs Z at a say which rows must vanish, and that they do, in just
    one direction q, certifies the example. Without the examples found, further units have a single
    example left. Directions that a search finds (`accept`) help in the same way: their coordinates
    follow from the units that fire for no other example (`settle`).

    Attributes:
        layer: The gradient.
        directions: Unit directions of the examples found (k, B).
        coordinates: Coordinates of their inputs (k, B), NaN where they are not known yet.
        strict: Whether `certify` asks for zeros to spare, after what it found proved wrong.
    """

    def __init__(self, layer: LowRank) -> None:
        self.layer = layer
        self.directions = layer.left.new_zeros(0, layer.rank)
        self.coordinates = layer.left.new_zeros(0, layer.rank)
        self.strict = False
        self._sizes = layer.left.norm(dim=1)
        self._alive = self._sizes > EMPTY * self._sizes[self._sizes > 0].median()

    @property
    def missing(self) -> int:
        """The number of examples that were not found."""
        return self.layer.rank - len(self.directions)

    @property
    def settled(self) -> Tensor:
        """Which examples' coordinates are known (k,)."""
        return self.coordinates.isfinite().all(dim=1)

    def rest(self) -> Tensor:
        """Rows of L without the examples whose coordinates are known (units, B)."""
        q, a = self.directions[self.settled], self.coordinates[self.settled]
        parts = self.layer.left @ q.T / (q * a).sum(dim=1)
        return self.layer.left - parts @ a

    def free(self) -> Tensor:
        """A basis of the directions at which the examples with known coordinates vanish (r, B)."""
        a = self.coordinates[self.settled]
        if not len(a):
            return torch.eye(self.layer.rank, dtype=a.dtype)
        found: Tensor = torch.linalg.svd(a, full_matrices=True)[2][len(a) :]
        return found

    def by_activity(self, rest: Tensor) -> Tensor:
        """Units with something left, those first that should fire for the fewest examples.

        The sum of all rows, with signs that make their bias gradients positive, is a weighted mean
        of the inputs, and units with a low output there seldom fire.
        """
        sums = rest @ self.layer.sums
        mean = sums.sign() @ rest / sums.abs().sum()
        order = (self.layer.outputs(mean) / self.layer.weight.norm(dim=1)).argsort()
        left = rest.norm(dim=1) > EMPTY * self._sizes[self._alive].median()
        found: Tensor = order[(left & self._alive)[order]]
        return found

    def singles(self) -> int:
        """Find the examples that are alone in a unit's rest; returns their number."""
        rest = self.rest()
        rows, found = rest[self.by_activity(rest)], 0
        candidates = rows / (rows @ self.layer.sums)[:, None]
        for at in range(0, len(candidates), CHUNK):
            new = self.certify(candidates[at : at + CHUNK])
            found += new
            if not new or not self.missing:
                break
        return found

    def last(self) -> int:
        """Find the only example missing, whose coordinates all directions vanish at."""
        a = torch.linalg.svd(self.directions, full_matrices=True)[2][-1:]
        return self.certify(a / (a @ self.layer.sums)[:, None])

    def certify(self, coordinates: Tensor) -> int:
        """Add the candidates (S, B) for which the rows vanish that must; returns their number.

        Where few rows must, as in trained networks, a mixture may pass. If it is `strict`, zeros
        beyond those that any direction can have exclude that.
        """
        outputs, near = self._outputs(coordinates)
        q = self._vanishing(outputs < -near)
        good = q.isfinite().all(dim=1) & (self._agree(outputs, near, q) > AGREE)
        return sum(
            self._add(q[i], coordinates[i])
            for i in good.nonzero().flatten().tolist()
            if not self.strict or self._rounded(q[i]) is not None
        )

    def guess(self) -> int:
        """Find examples with approximate coordinates of those that have none.

        What is left without the examples found is approximate, too. Signs of clearly negative
        outputs are right nevertheless, and the rows that vanish there give an exact direction.
        """
        q, a = self.directions, self.coordinates.clone()
        for i in (~self.settled).nonzero().flatten().tolist():
            a[i] = self._input(q[i])[0]
        rest = self.layer.left - self.layer.left @ q.T / (q * a).sum(dim=1) @ a
        rows = rest[self.by_activity(rest)[: 2 * CHUNK]]
        outputs, near = self._outputs(rows / (rows @ self.layer.sums)[:, None])
        return sum(
            self._examined(self._vanishing(outputs < -near / NEAR_ZERO * wide)) for wide in CLEARLY
        )

    def accept(self, candidates: Tensor) -> int:
        """Add those candidates (S, B), among the `free` ones, that are close to examples'."""
        rows = self.layer.left[self.by_activity(self.rest())]
        values = (candidates @ rows.T).abs()
        zeros = values < ROUNDED[1] * values.square().mean(dim=1, keepdim=True).sqrt()
        counts = zeros.sum(dim=1)
        least = self.layer.rank - int(self.settled.sum()) - 1 + SPARE
        order = counts.argsort(descending=True)
        return self._examined(candidates[order[counts[order] >= least]])

    def doubt(self) -> bool:
        """Forget directions without coordinates, or else all, to be strict; False: neither."""
        settled = self.settled
        if settled.all():
            if self.strict:
                return False
            self.strict, settled = True, torch.zeros_like(settled)
        self.directions, self.coordinates = self.directions[settled], self.coordinates[settled]
        return True

    def settle(self) -> int:
        """Find coordinates of directions that have none, and correct the others."""
        found, settled = 0, self.settled
        if not settled.all():
            rest = self.rest()
            order = self.by_activity(rest)
            ranks = torch.arange(len(order), dtype=rest.dtype)
            for reach in REACHES:
                prior = torch.exp(-ranks / (reach * int((~settled).sum()) + 3))
                found = self._explain(~settled, rest, order, prior)
                if found:
                    break
        if self.settled.any():
            everywhere = self._alive.nonzero().flatten()
            self._explain(self.settled, self.layer.left, everywhere, None)
        return found

    def all_coordinates(self) -> Tensor:
        """Coordinates (B, B) of the examples, if none is missing."""
        every = torch.linalg.inv(self.directions).T
        found: Tensor = every / (every @ self.layer.sums)[:, None]
        return found

    def _outputs(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs at coordinates (S, B), and below which size they count as zero."""
        outputs = self.layer.outputs(coordinates)
        return outputs, NEAR_ZERO * outputs.abs().median(dim=1, keepdim=True).values

    def _agree(self, outputs: Tensor, near: Tensor, q: Tensor) -> Tensor:
        """Share of units at which outputs are positive just where L q is not zero (S,)."""
        same = (outputs > near) == self.layer.fires(q)
        agree: Tensor = (same | (outputs.abs() <= near)).double().mean(dim=1)
        return agree

    def _vanishing(self, off: Tensor) -> Tensor:
        """The one direction at which given units vanish (S, units), NaN where there is not one."""
        left = self.layer.left
        normal = torch.stack([left[one].T @ left[one] for one in off])
        squares, vectors = torch.linalg.eigh(normal)
        sizes, q = squares[:, :2].clamp(min=0).sqrt(), vectors[:, :, 0]
        good = (sizes[:, 0] < self.layer.level(q).norm(dim=1)) & (sizes[:, 1:] > GAP).all(dim=1)
        return torch.where(good[:, None], q, torch.nan)

    def _examined(self, candidates: Tensor) -> int:
        """Add the directions of examples among candidates, likely ones first (S, B)."""
        found, tried = 0, candidates[:0]
        for q in candidates[candidates.isfinite().all(dim=1)]:
            if len(tried) == TRIED:
                break
            if _among(q, tried) or _among(q, self.directions):
                continue
            tried = torch.cat([tried, q[None]])
            rounded = self._rounded(q)
            if rounded is not None and self._input(rounded)[1] > SEPARATED:
                found += self._add(rounded, torch.full_like(q, torch.nan))
        return found

    def _input(self, q: Tensor) -> tuple[Tensor, float]:
        """Approximate coordinates of the example with a direction, and how well they fit."""
        others = self.directions[(self.directions @ q).abs() <= ALIKE]
        return input_that_fires(self.layer, self.layer.fires(q[None])[0], others)

    def _rounded(self, q: Tensor) -> Tensor | None:
        """The direction of an example close to q, or None if it has too few exact zeros."""
        left, least = self.layer.left[self._alive], self.layer.rank - 1 + SPARE
        for share in ROUNDED:
            values = (left @ q).abs()
            near = share * values.square().mean().sqrt()
            zero = values < torch.maximum(self.layer.level(q[None])[0, self._alive], near)
            if int(zero.sum()) < least:
                continue
            q = torch.linalg.svd(left[zero], full_matrices=False)[2][-1]
            zero = ~self.layer.fires(q[None])[0, self._alive]
            if int(zero.sum()) < least:
                continue
            basis, sizes, _ = torch.linalg.svd(left[zero], full_matrices=False)
            alone = basis[:, :-1].square().sum(dim=1) > ALONE
            if not alone.any() and not sizes[-2:-1].lt(GAP).any():
                return q
        return None

    def _explain(self, which: Tensor, rows: Tensor, units: Tensor, prior: Tensor | None) -> int:
        """Set those coordinates that several units agree on; returns their number."""
        q, start = self.directions[which], None
        if prior is None:
            start = self.coordinates[which]
            start = start / (q * start).sum(dim=1, keepdim=True)
        known = self.layer.left[units] @ q.T
        found, agreed = explain(known, rows[units], self._sizes[units], start, prior)
        at, found = which.nonzero().flatten()[agreed], found[agreed]
        found = found / (found @ self.layer.sums)[:, None]
        right = self._agree(*self._outputs(found), self.directions[at]) > AGREE
        self.coordinates[at[right]] = found[right]
        return int(right.sum())

    def _add(self, q: Tensor, coordinates: Tensor) -> int:
        """Add an example, or the coordinates of one found before; returns 1 if that is new."""
        alike = ((self.directions @ q).abs() > ALIKE).nonzero().flatten()
        if len(alike):
            new = bool(self.coordinates[alike[0]].isnan().any() and coordinates.isfinite().all())
            if new:
                self.coordinates[alike[0]] = coordinates
            return int(new)
        basis = torch.linalg.qr(self.directions.T).Q
        if not self.missing or (q - basis @ (basis.T @ q)).norm() < EMPTY:
            return 0
        self.directions = torch.cat([self.directions, unit(q[None])])
        self.coordinates = torch.cat([self.coordinates, coordinates[None]])
        return 1


def _among(q: Tensor, directions: Tensor) -> bool:
    """Whether a direction is one of others, up to its sign."""
    return bool(((directions @ q).abs() > ALIKE).any())
