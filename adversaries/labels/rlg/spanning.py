"""Separable columns almost without linear programs, by certificates and projections.

Columns that positively span the space (a basis B, and a combination of others that equals minus
the sum of B) are a certificate: all other columns lie in their cone and are rejected. Such columns
exist because the columns of a softmax's gradient sum to zero, and two certificates leave few
candidates. Rows of -B^-1 are separators of B's own columns if no other column is on the wrong side.

Each remaining column is projected onto the cone of the others (non-negative least squares). A
residual is a separator, and its length is the margin; without a residual the column is rejected. If
rounding could change a decision, the linear program makes it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from adversaries.labels.rlg.least_squares import nonnegative
from adversaries.labels.rlg.separability import Array, Indices, Verdict, by_programs, indices

SLACK = 1e-9
"""How far below 0 a separator's product with another column may be, if that with its own is -1.

The LP, whose tolerance is 1e-7, accepts such a separator, too.
"""

LARGEST = 1e6
"""Sum of a combination's coefficients, and length of a separator, beyond which rounding may decide.

The LP's tolerance then corresponds to a tenth of the column.
"""

RESIDUAL = 1e-10
"""Largest residual of a column of length 1 that counts as a combination of others."""

STEEP = 1e-7
"""Smallest pivot, relative to the first, of columns that count as a basis of the space."""

BLOCK = 1024
"""Number of columns that are compared with all others at once."""

AT_ONCE = 8
"""Number of columns, those furthest on the wrong side, that join the working set in a round."""


def by_spanning(q: Array, lengths: Array, against: Iterable[int] | None = None) -> Verdict:
    """Find the separable columns, as `by_lp` does, with few linear programs.

    Args:
        q: Columns (S, C) of length 1 or 0.
        lengths: Norms of the columns before they were normalised, (C,); long ones are tried first.
        against: Indices of the columns to separate from; None: all.
    """
    return _Search(q, lengths, indices(q, against)).verdict()


class _Search:
    def __init__(self, q: Array, lengths: Array, others: Indices) -> None:
        self.q = q
        self.lengths = lengths
        self.open: NDArray[np.bool_] = np.abs(q).max(axis=0) > 0
        self.live = others[self.open[others]]
        self.live = self.live[np.argsort(-lengths[self.live], kind="stable")]
        self.work = self.live[: 4 * len(q)]
        self.margins: dict[int, float] = {}

    def verdict(self) -> Verdict:
        spent = self._tried(self.live)
        if spent.size:
            # Labels have long columns: these are kept, and all others must be new.
            spent = np.setdiff1d(spent, self.live[: len(self.q)])
            self._tried(self.live[~np.isin(self.live, spent)])
        elif len(self.live) > 1:
            self._pointed()
        left = np.flatnonzero(self.open).tolist()
        # Deciding one column may close others.
        unsure = [c for c in left if self.open[c] and not self._settled(c)]
        margins, failed = by_programs(self.q, unsure, self.live)
        return Verdict(self.margins | margins, frozenset(unsure), failed, len(unsure))

    def _tried(self, pool: Indices) -> Indices:
        """Accept and reject columns by one basis.

        Args:
            pool: Indices of the columns that may form the certificate, longest first.

        Returns:
            Indices of the certificate's columns; empty if no certificate was found.
        """
        basis = self._basis(pool)
        if basis is None:
            return np.empty(0, dtype=np.intp)
        inverse = np.linalg.inv(self.q[:, basis])
        a = inverse @ self.q
        reach = np.linalg.norm(inverse, axis=1)
        # Each column of the basis is at 1 in its own row, and must be the only positive one.
        alone = (a > SLACK)[:, self.live].sum(axis=1) == 1
        for row in np.flatnonzero(alone & (reach < LARGEST) & self.open[basis]).tolist():
            self._accept(int(basis[row]), 1 / float(reach[row]))
        rest = pool[~np.isin(pool, basis)]
        found = self._project(-self.q[:, basis].sum(axis=1), rest, rest[: 4 * len(a)])
        if found is None or found.separator is not None:
            return np.empty(0, dtype=np.intp)
        # q_j = sum_i a_ij b_i + m_j (sum_i b_i + sum of the others), no coefficient below 0.
        lift = np.maximum(0, -a.min(axis=0))
        spanned = a.sum(axis=0) + lift * (len(a) + found.total) < LARGEST
        used = np.append(basis, found.support)
        spanned[used] = False
        self.open &= ~spanned
        return used

    def _pointed(self) -> None:
        """Accept extreme rays if all columns lie in an open half-space v.q > 0.

        The points x_j = q_j / v.q_j then lie in a plane. The point that lies furthest in some
        direction is a corner of their hull, and most corners lie furthest in their own direction
        from the mean of all points.
        """
        lifted = np.vstack([self.q, np.ones(self.q.shape[1])])
        top = np.eye(len(lifted))[-1]
        found = self._project(top, self.live, self.live[: len(self.work)], lifted)
        if found is None or found.separator is None:
            return
        # v is the point of the columns' convex hull nearest to 0, scaled so that all v.q_j >= 1.
        v = found.separator[:-1]
        height = v @ self.q[:, self.live]
        if height.min() < STEEP * height.max():
            return
        x = self.q[:, self.live] / height
        away = x - x.mean(axis=1, keepdims=True)
        for start in range(0, len(self.live), BLOCK):
            own = np.arange(start, min(start + BLOCK, len(self.live)))
            far = away[:, own].T @ x
            reached = far[own - start, own].copy()
            far[own - start, own] = -np.inf
            gap = reached - far.max(axis=1)
            for i in own[gap > 0].tolist():
                middle = reached[i - start] - gap[i - start] / 2
                r = middle * v - away[:, i]
                c = int(self.live[i])
                own_side = -float(r @ self.q[:, c])
                # For a column that equals the mean up to rounding, r vanishes.
                if np.linalg.norm(r) < LARGEST * own_side:
                    self._accept(c, own_side / float(np.linalg.norm(r)))

    def _accept(self, c: int, margin: float) -> None:
        self.margins[c] = margin
        self.open[c] = False

    def _basis(self, pool: Indices) -> Indices | None:
        """Choose S independent columns of the pool, long ones first; None if there are fewer."""
        size = len(self.q)
        for among in (pool[: 4 * size], pool):
            if len(among) < size:
                return None
            long = self.q[:, among] * self.lengths[among]
            _, r, order = qr(long, mode="economic", pivoting=True, check_finite=False)
            pivots = np.abs(np.diag(r))
            if pivots[-1] > STEEP * pivots[0]:
                return among[order[:size]]
        return None

    def _settled(self, c: int) -> bool:
        """Accept or reject one column by projection; return False if rounding could decide."""
        others = self.live[self.live != c]
        found = self._project(self.q[:, c], others, self.work[self.work != c])
        if found is None:
            return False
        if found.separator is not None:
            reach = float(np.linalg.norm(found.separator))
            if reach < LARGEST:
                self._accept(c, 1 / reach)
            return reach < LARGEST
        if len(found.support) < len(self.q) or found.total > LARGEST or found.least < SLACK:
            return False  # the column may lie on the cone's boundary
        self.open[c] = False
        # The cone of the same columns contains further ones, which are rejected, too.
        left = np.flatnonzero(self.open)
        if len(left) > 1:
            a = np.linalg.solve(self.q[:, found.support], self.q[:, left])
            inside = (a.min(axis=0) > SLACK) & (a.sum(axis=0) < LARGEST)
            inside &= ~np.isin(left, found.support)
            self.open[left[inside]] = False
        return True

    def _project(
        self, target: Array, others: Indices, work: Indices, q: Array | None = None
    ) -> "_Projection | None":
        """Project a target onto the cone of other columns with a working set of few of them.

        Args:
            target: Vector (S,).
            others: Indices of the columns that generate the cone.
            work: Indices of the first working set.
            q: The columns, if they are not those of the search.

        Returns:
            The projection; None if it was not found up to rounding.
        """
        q = self.q if q is None else q
        support: Indices = np.empty(0, dtype=np.intp)
        for _ in range(len(q) + 50):
            solved = nonnegative(q[:, work], target, np.flatnonzero(np.isin(work, support)))
            if solved is None:
                return None
            passive, x, residual = solved
            support = work[passive]
            if np.linalg.norm(residual) <= RESIDUAL * max(1.0, float(np.linalg.norm(target))):
                least = float(x.min()) if len(x) else 0.0
                return _Projection(support, float(x.sum()), least, None)
            depth = float(residual @ target)
            if depth < 0.5 * float(residual @ residual):
                return None  # for a projection the two are equal up to rounding
            beyond = (residual @ q)[others] / depth
            wrong = np.flatnonzero(beyond > SLACK)
            if not wrong.size:
                return _Projection(support, float(x.sum()), 0.0, -residual / depth)
            new = others[wrong[np.argsort(-beyond[wrong], kind="stable")[:AT_ONCE]]]
            new = np.setdiff1d(new, work)
            if not new.size:
                return None
            work = np.append(work, new)
            self.work = np.union1d(self.work, new)
        return None


@dataclass(frozen=True, slots=True)
class _Projection:
    """A target column as a non-negative combination of others, or a separator.

    Attributes:
        support: Columns of the combination.
        total: Sum of its coefficients.
        least: Smallest of its coefficients.
        separator: Vector (S,) scaled to -1 at the target, if a residual is left.
    """

    support: Indices
    total: float
    least: float
    separator: Array | None
