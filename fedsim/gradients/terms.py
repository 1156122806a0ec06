"""The part of a distance between gradients that parameters of one shape contribute."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from fedsim.gradients.factored import Factored, Leading, gram, leading

ALIKE = 1e-5
"""Largest distance from a matrix of rank T that is float32 rounding, as a share of the norm."""

TILE = 1 << 17
"""Elements of a weight gradient that are formed at a time: two such tiles fit a core's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """K parameters of one shape, and their gradients as V victims sent them.

    Attributes:
        names: Names of the parameters.
        theirs: Vectors (K, V, n); or K V matrices (out, in), in factors if their rank is T at most.
        norms: Norms of the gradients, (K, V).
        weights: Weights of their terms, (K, V).
    """

    names: list[str]
    theirs: Tensor | Leading
    norms: Tensor
    weights: Tensor

    def cosine(self, gradients: Mapping[str, Tensor | Factored], victims: Tensor) -> Tensor:
        """Sum over k of w_k (1 - cosine of ours and theirs), (R,), without gradients of zero."""
        ours = self._stacked(gradients)
        if isinstance(ours, Tensor):
            assert isinstance(self.theirs, Tensor)  # noqa: S101 - both are vectors
            dots = (ours * _of(self.theirs, victims)).sum(dim=2)
            squares = ours.square().sum(dim=2)
        else:
            left, right = ours
            squares = (gram(left) * gram(right)).sum(dim=(2, 3))
            if isinstance(self.theirs, Leading):
                pulled = _product(left, self.theirs.u * self.theirs.s.unsqueeze(2), victims)
                dots = (pulled * _product(right, self.theirs.v, victims)).sum(dim=(2, 3))
            else:
                dots = (_product(left, self.theirs, victims) * right).sum(dim=(2, 3))
        ours_long = squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
        theirs_long = _of(self.norms, victims)
        known = theirs_long > 0
        apart = 1 - dots / (ours_long * theirs_long.where(known, torch.ones_like(theirs_long)))
        return (apart * _of(self.weights, victims) * known).sum(dim=0)

    def gap(
        self, gradients: Mapping[str, Tensor | Factored], victims: Tensor, *, l1: float
    ) -> Tensor:
        """Sum over k of w_k (||g' - g||^2 + l1 ||g' - g||_1), (R,); l1 must be 0 for factors."""
        ours = self._stacked(gradients)
        if isinstance(ours, Tensor):
            assert isinstance(self.theirs, Tensor)  # noqa: S101 - both are vectors
            difference = ours - _of(self.theirs, victims)
            apart = difference.square().sum(dim=2) + l1 * difference.abs().sum(dim=2)
        elif isinstance(self.theirs, Leading):
            own = (_of(part, victims) for part in (self.theirs.u, self.theirs.s, self.theirs.v))
            apart = Leading(*own).squared_distance(ours)
        else:
            whose = (victims * (self.theirs.shape[1] > 1)).tolist()
            parts = zip(*ours, self.theirs, strict=True)
            apart = torch.stack([cast(Tensor, _gap(*one, whose, l1)) for one in parts])
        return (apart * _of(self.weights, victims)).sum(dim=0)

    def _stacked(self, gradients: Mapping[str, Tensor | Factored]) -> Tensor | Factored:
        ours = [gradients[name] for name in self.names]
        factors = [one for one in ours if isinstance(one, tuple)]
        if factors:
            left, right = zip(*factors, strict=True)
            return torch.stack(left), torch.stack(right)
        return torch.stack([one for one in ours if isinstance(one, Tensor)])


def observed_terms(
    observed: Mapping[str, Tensor],
    like: Mapping[str, Tensor | Factored],
    weights: Mapping[str, float],
    *,
    dtype: torch.dtype,
    factored: bool,
) -> list[Terms]:
    """Group observed gradients by the shape of their parameters.

    Args:
        observed: Gradients (V, *shape) by name.
        like: Gradients of dummies, which show the number of tokens T in a layer.
        weights: Weight of each parameter.
        dtype: Of the result.
        factored: Whether matrices are kept in factors, if that is smaller and loses nothing.

    Returns:
        One record for each shape.
    """
    groups: dict[tuple[Any, ...], dict[str, Tensor | Leading]] = {}
    for name, ours in like.items():
        theirs: Tensor | Leading = observed[name]
        key: tuple[Any, ...] = (observed[name].shape,)
        if isinstance(ours, tuple):
            found = _factors(observed[name], ours[0].shape[1]) if factored else None
            theirs = observed[name] if found is None else found
            # A batch of weight gradients as they came would be large: one parameter at a time.
            key = (*(part.shape for part in ours), "" if found else name)
        groups.setdefault(key, {})[name] = theirs
    made = []
    for members in groups.values():
        names = list(members)
        norms = torch.stack([observed[name].double().flatten(1).norm(dim=1) for name in names])
        given = torch.tensor([weights[name] for name in names]).to(norms)
        made.append(
            Terms(
                names,
                _joined(list(members.values()), dtype),
                norms.to(dtype),
                given[:, None].expand_as(norms).to(dtype),
            )
        )
    return made


def _factors(matrices: Tensor, rank: int) -> Leading | None:
    """Matrices (V, out, in) in factors of at most `rank`; None if that is larger or inexact."""
    rows, columns = matrices.shape[1:]
    if rank * (rows + columns) > rows * columns:
        return None
    parts = []
    for matrix in matrices.double():
        part = leading(matrix, rank, torch.Generator().manual_seed(0))
        rest = matrix - (part.u * part.s) @ part.v.mT
        if float(rest.norm()) > ALIKE * float(matrix.norm()):
            return None
        parts.append(part)
    return Leading(*(torch.stack([getattr(part, key) for part in parts]) for key in "usv"))


def _joined(members: Sequence[Tensor | Leading], dtype: torch.dtype) -> Tensor | Leading:
    matrices = [one for one in members if isinstance(one, Leading)]
    if matrices:
        return Leading(
            *(torch.stack([getattr(one, key) for one in matrices]).to(dtype) for key in "usv")
        )
    return torch.stack([one for one in members if isinstance(one, Tensor)]).to(dtype)


def _of(theirs: Tensor, victims: Tensor) -> Tensor:
    """(K, V, ...) for each of R rows; (K, 1, ...) as it is."""
    return theirs if theirs.shape[1] == 1 else theirs[:, victims]


def _product(rows: Tensor, theirs: Tensor, victims: Tensor) -> Tensor:
    """(K, R, T, n) times each row's own of (K, V, n, m)."""
    if theirs.shape[1] > 1:
        return rows @ theirs[:, victims]
    return (rows.flatten(1, 2) @ theirs[:, 0]).view(*rows.shape[:3], -1)


class _Gap(torch.autograd.Function):
    """||G' - G||^2 + l1 ||G' - G||_1 of G' = left' right, differentiable once.

    Autograd would keep R weight gradients a layer; the slope needs as much as the factors. A few
    rows of one matrix at a time, so that they stay in the cache.
    """

    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, theirs: Tensor, whose: Sequence[int], l1: float
    ) -> Tensor:
        """left (R, T, out), right (R, T, in), theirs (V, out, in), whose of R -> (R,)."""
        size = max(1, TILE // theirs.shape[2])
        size = -(-theirs.shape[1] // -(-theirs.shape[1] // size))
        room = theirs.new_empty(2, size * theirs.shape[2])
        value = left.new_zeros(len(left))
        slopes = torch.empty_like(left), torch.zeros_like(right)
        sloping = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        for row, (a, b, at) in enumerate(zip(left, right, whose, strict=True)):
            tiles = torch.split(theirs[at], size)
            outs = torch.split(slopes[0][row], size, dim=1)
            for some, tile, out in zip(torch.split(a, size, dim=1), tiles, outs, strict=True):
                gap, half = (one[: tile.numel()].view_as(tile) for one in room)
                torch.addmm(tile, some.mT, b, beta=-1, out=gap)
                torch.add(gap, torch.sign(gap, out=half), alpha=l1 / 2, out=half)
                flat = gap.view(-1)
                # ||x||^2 + l1 ||x||_1 = 2 x'h - x'x with h = x + l1/2 sign(x), half of the slope.
                value[row] += 2 * (flat @ half.view(-1)) - flat @ flat
                if sloping:
                    out.copy_(b @ half.mT)
                    slopes[1][row].addmm_(some, half)
        ctx.save_for_backward(*slopes)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        slopes = ctx.saved_tensors
        each = 2 * grads[0].detach()[:, None, None]
        return each * slopes[0], each * slopes[1], None, None, None


_gap: Callable[..., Any] = _Gap.apply
