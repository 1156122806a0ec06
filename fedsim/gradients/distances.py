"""Distances between gradients, of R dummy batches at a time.

Gradients are given by parameter name, as tensors (R, *shape), or as `Outer` products for a linear
layer and a single example. Every distance is (R,) and differentiable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

import torch
from torch import Tensor

ALIKE = 1e-6
"""Largest distance from an outer product that is float32 rounding, as a share of the norm."""


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """Weight gradients of a linear layer for one example each, as outer products.

    Such a gradient has rank 1, so that norms and inner products cost out + in operations instead
    of out x in.

    Attributes:
        left: Gradients at the layer's outputs, (R, out).
        right: Inputs of the layer, (R, in).
    """

    left: Tensor
    right: Tensor

    @property
    def dense(self) -> Tensor:
        """The products as matrices (R, out, in)."""
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)

    def __getitem__(self, rows: Tensor) -> "Outer":
        return Outer(self.left[rows], self.right[rows])

    @classmethod
    def of(cls, matrices: Tensor) -> "Outer | None":
        """The factors of matrices (R, out, in), or None if one of them has another rank than 1."""
        rows = matrices.square().sum(dim=2).argmax(dim=1)
        right = matrices[torch.arange(len(matrices)), rows]
        square = right.square().sum(dim=1, keepdim=True)
        if not bool((square > 0).all()):
            return None
        left = torch.einsum("roi,ri->ro", matrices, right) / square
        found = cls(left, torch.einsum("roi,ro->ri", matrices, left) / _dot(left, left)[:, None])
        left_over = (found.dense - matrices).flatten(1).norm(dim=1)
        return found if bool((left_over <= ALIKE * matrices.flatten(1).norm(dim=1)).all()) else None


Gradients = Mapping[str, Union[Tensor, Outer]]  # noqa: UP007 - a runtime value, for annotations


def squared_distance(
    ours: Gradients, theirs: Gradients, weights: Mapping[str, float] | None = None
) -> Tensor:
    """Sum over parameters of ||g' - g||^2 (Zhu et al., DLG, Eq. 4), (R,); a sum, not a mean.

    Args:
        ours: Gradients g' of R dummy batches by name.
        theirs: Observed gradients g, one for each of the R.
        weights: Weight of a parameter's term by name; 1 if left out.
    """
    total: Tensor | None = None
    for name, mine in ours.items():
        term = _squared(mine, theirs[name]) * (weights or {}).get(name, 1.0)
        total = term if total is None else total + term
    assert total is not None, "there is no parameter to compare"  # noqa: S101 - checked by callers
    return total


def cosine_distance(
    ours: Gradients, theirs: Gradients, weights: Mapping[str, float] | None = None
) -> Tensor:
    """1 - cosine of the two gradients, all parameters concatenated, (R,) (Geiping et al., Eq. 4).

    Args:
        ours: Gradients of R dummy batches by name.
        theirs: Observed gradients, one for each of the R.
        weights: Weight of a parameter's inner products by name; 1 if left out.
    """
    dot, mine_square, their_square = (
        sum(
            (_inner(a[name], b[name]) * (weights or {}).get(name, 1.0) for name in ours),
            start=torch.zeros(()),
        )
        for a, b in ((ours, theirs), (ours, ours), (theirs, theirs))
    )
    tiny = torch.finfo(mine_square.dtype).tiny
    return 1 - dot / (mine_square.clamp(min=tiny).sqrt() * their_square.clamp(min=tiny).sqrt())


def l1_l2_distance(
    ours: Gradients,
    theirs: Gradients,
    weights: Mapping[str, float] | None = None,
    *,
    l1: float = 0.01,
) -> Tensor:
    """||g' - g||^2 + l1 ||g' - g||_1, summed over parameters, (R,) (Deng et al., TAG).

    Args:
        ours: Gradients g' of R dummy batches by name.
        theirs: Observed gradients g, one for each of the R.
        weights: Weight of a parameter's term by name; 1 if left out.
        l1: Weight of the L1 norm.
    """
    total = squared_distance(ours, theirs, weights)
    for name, mine in ours.items():
        gap = (_dense(mine) - _dense(theirs[name])).abs().flatten(1).sum(dim=1)
        total = total + l1 * (weights or {}).get(name, 1.0) * gap
    return total


def _dense(value: Tensor | Outer) -> Tensor:
    return value.dense if isinstance(value, Outer) else value


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, (R,)."""
    return (a * b).flatten(1).sum(dim=1)


def _inner(a: Tensor | Outer, b: Tensor | Outer) -> Tensor:
    if isinstance(a, Outer) and isinstance(b, Outer):
        return _dot(a.left, b.left) * _dot(a.right, b.right)
    if isinstance(b, Outer):
        a, b = b, a
    if isinstance(a, Outer):
        return torch.einsum("ro,roi,ri->r", a.left, _dense(b), a.right)
    return _dot(a, _dense(b))


def _squared(mine: Tensor | Outer, theirs: Tensor | Outer) -> Tensor:
    """||mine - theirs||^2, without cancellation where both are outer products.

    With u the direction of h*, a = h . u and f = h - a u, which is orthogonal to u:
    ||d h' - d* h*'||^2 = |a d - |h*| d*|^2 + |d|^2 |f|^2.
    """
    if not (isinstance(mine, Outer) and isinstance(theirs, Outer)):
        return (_dense(mine) - _dense(theirs)).square().flatten(1).sum(dim=1)
    length = theirs.right.norm(dim=1, keepdim=True)
    u = theirs.right / length
    a = _dot(mine.right, u)[:, None]
    e, f = a * mine.left - length * theirs.left, mine.right - a * u
    return _dot(e, e) + _dot(mine.left, mine.left) * _dot(f, f)
