"""Distances between gradients, of R dummy batches at a time.

Gradients are given by parameter name, as tensors (R, *shape), or as `Outer` products for a linear
layer and a single example. Every distance is (R,) and differentiable.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
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
    terms = (_squared(ours[name], theirs[name]) * (weights or {}).get(name, 1.0) for name in ours)
    return reduce(torch.add, terms)


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
        reduce(
            torch.add, (_inner(a[name], b[name]) * (weights or {}).get(name, 1.0) for name in ours)
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
        gap = _rows((dense(mine) - dense(theirs[name])).abs()).sum(dim=1)
        total = total + l1 * (weights or {}).get(name, 1.0) * gap
    return total


def dense(value: Tensor | Outer) -> Tensor:
    """Expand outer products to matrices (R, out, in); other tensors are returned unchanged."""
    return value.dense if isinstance(value, Outer) else value


def _rows(value: Tensor) -> Tensor:
    """A parameter's R gradients as rows (R, n); of a single number they are (R,)."""
    return value.reshape(len(value), -1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products of rows, (R,)."""
    return _rows(a * b).sum(dim=1)


def _inner(a: Tensor | Outer, b: Tensor | Outer) -> Tensor:
    if isinstance(a, Outer) and isinstance(b, Outer):
        return _dot(a.left, b.left) * _dot(a.right, b.right)
    if isinstance(b, Outer):
        a, b = b, a
    if isinstance(a, Outer):
        return torch.einsum("ro,roi,ri->r", a.left, dense(b), a.right)
    return _dot(a, dense(b))


def _squared(mine: Tensor | Outer, theirs: Tensor | Outer) -> Tensor:
    """||mine - theirs||^2, without cancellation where both are outer products.

    With u the direction of h*, a = h . u and f = h - a u, which is orthogonal to u:
    ||d h' - d* h*'||^2 = |a d - |h*| d*|^2 + |d|^2 |f|^2.
    """
    if not (isinstance(mine, Outer) and isinstance(theirs, Outer)):
        return _rows((dense(mine) - dense(theirs)).square()).sum(dim=1)
    length = theirs.right.norm(dim=1, keepdim=True)
    u = theirs.right / length
    a = _dot(mine.right, u)[:, None]
    e, f = a * mine.left - length * theirs.left, mine.right - a * u
    return _dot(e, e) + _dot(mine.left, mine.left) * _dot(f, f)


class _Matrix:
    """An observed gradient G = U diag(s) V' of unit norm, (m, n), and its whitening.

    Args:
        matrix: G.
        floor: Share of the largest singular value that is added to each.

    Attributes:
        observed: G.
        count: Number of singular values r.
        rest: floor^-1/2, with the floor in units of s.
        out: (U (s + floor) U')^-1/2, (m, m), with the floor alone outside U.
        right: V, (n, r).
        inner: (s + floor)^-1/2 - floor^-1/2, (r,).
    """

    def __init__(self, matrix: Tensor, floor: float) -> None:
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        least = floor * float(values[0])
        self.observed, self.count, self.rest = matrix, len(values), least**-0.5
        inner = (values + least).rsqrt() - self.rest
        out = self.rest * torch.eye(len(matrix), dtype=left.dtype, device=left.device)
        out = out + left * inner @ left.T
        self.out, self.right, self.inner = (x.to(matrix.dtype) for x in (out, right.T, inner))

    def distance(self, ours: Tensor) -> Tensor:
        """Distances (R,) of gradients (R, m, n)."""
        size = ours.flatten(1).norm(dim=1)[:, None, None]
        apart = self.out @ (ours / size - self.observed)
        within = apart @ self.right
        inside = within * self.inner
        # || a (rest I + V inner V') ||^2, the second term in V's coordinates
        cross = 2 * self.rest * (inside * within).flatten(1).sum(dim=1)
        whole = self.rest**2 * apart.flatten(1).square().sum(dim=1)
        found: Tensor = whole + cross + inside.flatten(1).square().sum(dim=1)
        return found / self.count


def _bias_of(name: str) -> str:
    """The bias that goes with a weight, such as `lstm.bias_ih_l0` with `lstm.weight_ih_l0`."""
    layer, dot, own = name.rpartition(".")
    return layer + dot + own.replace("weight", "bias")


class WhitenedDistance:
    """|| L (g'/|g'| - g/|g|) R ||^2 / r, with L = (g g')^-1/4 and R = (g' g)^-1/4, over matrices.

    The gradient of few frames, or of a softmax, has a few large singular values and many small
    ones. Only the large ones affect its Euclidean norm, and so the cosine, and matching stops
    on a plateau once they match. L and R, Shampoo's preconditioners (Gupta et al., 2018) with the
    observed gradient in place of a sum over steps, give weight to all; r is the number of singular
    values. A matrix includes its bias as one more column (`x.bias` of `x.weight`, and an LSTM's);
    tensors of other shapes are flattened to a matrix.

    Args:
        theirs: The observed gradient by parameter name.
        floor: Share of the largest singular value that is added to each, so that rounding and noise
            below it keep little weight.

    Raises:
        ValueError: A matrix is zero.
    """

    def __init__(self, theirs: Mapping[str, Tensor], floor: float = 0.01) -> None:
        self.names = [name for name in theirs if theirs[name].ndim > 1]
        self.biases = {
            name: bias for name in self.names if (bias := _bias_of(name)) != name and bias in theirs
        }
        self.parts: dict[str, _Matrix] = {}
        for name in self.names:
            matrix = self._joined({key: value[None] for key, value in theirs.items()}, name)[0]
            if not bool(matrix.any()):
                raise ValueError(f"the gradient of '{name}' is zero throughout")
            self.parts[name] = _Matrix(matrix / matrix.norm(), floor)

    def __call__(self, ours: Mapping[str, Tensor]) -> Tensor:
        """Distances (R,) of gradients (R, *shape) by parameter name, the mean over matrices."""
        each = [part.distance(self._joined(ours, name)) for name, part in self.parts.items()]
        return torch.stack(each).mean(dim=0)

    def _joined(self, gradients: Mapping[str, Tensor], name: str) -> Tensor:
        matrix = gradients[name].flatten(2)
        if name in self.biases:
            matrix = torch.cat([matrix, gradients[self.biases[name]][:, :, None]], dim=2)
        return matrix
