"""Optimizers of many independent problems at a time, a row each."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

SUFFICIENT = 1e-4
"""Share of the predicted decrease that a step must bring (Armijo)."""

SHRINK = 0.25
REJECTIONS = 6
"""Rejected steps in a row after which a row drops its history and follows the gradient."""

CURVED = 1e-10
"""Least cosine between a step s and the change of gradient y of a pair worth keeping."""


class Optimizer(ABC):
    """An optimizer of R independent problems, which proposes a point for each at a time."""

    _x: Tensor
    _stuck: Tensor

    @abstractmethod
    def point(self) -> Tensor:
        """Where to evaluate next, (R, n)."""

    @abstractmethod
    def tell(self, values: Tensor, gradients: Tensor) -> None:
        """Take values (R,) and gradients (R, n) at `point()`; an undefined value is Inf."""

    @abstractmethod
    def restart(self, row: int, start: Tensor) -> None:
        """Start a row anew from a point (n,), without any state."""

    def at(self, row: int) -> Tensor:
        """The point (n,) that a row has reached."""
        return self._x[row].clone()

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (int64)."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows])

    def stuck(self) -> Tensor:
        """Rows that no step can better, (R,) bool."""
        return self._stuck


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), optionally on the sign of the gradient (Geiping et al., 2020).

    Args:
        starts: Starting points (R, n).
        lr: Step length, or one for each row (R,).
        schedule: Factor of the step length by step, from 0.
        signed: Use the sign of the gradient.
        low: Lower bound of the clamped coordinates.
        high: Upper bound of the clamped coordinates.
        clamped: The first `clamped` coordinates of a row are clamped after every step.
        revise: Called after every step with points (R, n), the index of the start of each row (R,)
            int64 and the number of steps it has taken (R,) int64; it returns the points to go on
            from.
    """

    def __init__(
        self,
        starts: Tensor,
        *,
        lr: float | Tensor,
        schedule: Callable[[int], float],
        signed: bool = False,
        low: float | None = None,
        high: float | None = None,
        clamped: int = 0,
        revise: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        self._x = starts.clone()
        self._rows = torch.arange(len(starts), device=starts.device)
        self._revise = revise
        self._mean = torch.zeros_like(starts)
        self._square = torch.zeros_like(starts)
        self._steps = torch.zeros(len(starts), dtype=torch.int64, device=starts.device)
        self._taken = [0] * len(starts)  # the same, to be read without waiting for a GPU
        self._lr, self._schedule, self._signed = lr, schedule, signed
        self._low, self._high, self._clamped = low, high, clamped
        self._stuck = torch.zeros(len(starts), dtype=torch.bool, device=starts.device)

    def point(self) -> Tensor:
        """Where to evaluate next, (R, n)."""
        return self._x

    def tell(self, values: Tensor, gradients: Tensor) -> None:
        """Take values (R,) and gradients (R, n) at `point()`; an undefined value is Inf."""
        self._stuck |= values.isinf()
        g = gradients.sign() if self._signed else gradients
        factors = [self._schedule(step) for step in self._taken]
        self._taken = [step + 1 for step in self._taken]
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * g
        self._square = 0.999 * self._square + 0.001 * g.square()
        count = self._steps.to(g.dtype)[:, None]
        mean = self._mean / (1 - 0.9**count)
        square = self._square / (1 - 0.999**count)
        lr = (self._lr * torch.tensor(factors, dtype=g.dtype, device=g.device))[:, None]
        self._x = self._x - lr * mean / (square.sqrt() + 1e-8)
        if self._clamped:
            self._x[:, : self._clamped] = self._x[:, : self._clamped].clamp(self._low, self._high)
        if self._revise is not None:
            self._x = self._revise(self._x, self._rows, self._steps)

    def restart(self, row: int, start: Tensor) -> None:
        """Start a row anew from a point (n,), without any state."""
        self._x[row] = start
        self._mean[row] = self._square[row] = 0.0
        self._steps[row] = self._taken[row] = 0
        self._stuck[row] = False

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (int64)."""
        super().keep(rows)
        self._taken = [self._taken[row] for row in rows.tolist()]


class LBFGS(Optimizer):
    """Limited-memory BFGS, which computes the directions of all rows in one batched product.

    The inverse Hessian is in its compact form (Byrd, Nocedal and Schnabel, Representations of
    quasi-Newton matrices, 1994): two products with the history instead of a recursion over it.

    Args:
        starts: Starting points (R, n).
        history: Number of pairs of steps and changes of gradient that a row keeps.
        backtracking: Cut a step to a quarter if it brings less than 1e-4 of the predicted decrease
            (Armijo); after six cuts the row drops its history and follows the negative gradient.
            Without it every step has length 1, as in DLG's code.
    """

    def __init__(self, starts: Tensor, *, history: int = 100, backtracking: bool = True) -> None:
        rows, size = starts.shape
        self._backtracking = backtracking
        self._x = starts.clone()
        self._f = starts.new_full((rows,), torch.inf)
        self._g = torch.zeros_like(starts)
        self._d = torch.zeros_like(starts)
        self._t = starts.new_zeros(rows)
        self._cuts = starts.new_zeros(rows, dtype=torch.int64)
        self._steep = starts.new_zeros(rows, dtype=torch.bool)
        self._stuck = starts.new_zeros(rows, dtype=torch.bool)
        self._pairs = starts.new_zeros(rows, 2 * history, size)
        self._sy = torch.eye(history, dtype=torch.float64, device=starts.device).repeat(rows, 1, 1)
        self._yy = starts.new_zeros(rows, history, history, dtype=torch.float64)
        self._count = starts.new_zeros(rows, dtype=torch.int64)

    def point(self) -> Tensor:
        """Where to evaluate next, (R, n)."""
        trial: Tensor = self._x + self._t[:, None] * self._d
        return trial

    def tell(self, values: Tensor, gradients: Tensor) -> None:
        """Take values (R,) and gradients (R, n) at `point()`; an undefined value is Inf."""
        promised = SUFFICIENT * self._t * (self._g * self._d).sum(dim=1)
        taken = values <= self._f + promised
        first = self._f.isinf()
        taken |= first
        if not self._backtracking:
            taken = torch.ones_like(taken)
        broken = values.isinf() & taken
        taken &= ~broken
        self._stuck |= broken
        step = self._t[:, None] * self._d
        s = torch.where(taken[:, None], step, torch.zeros_like(step))
        y = torch.where(taken[:, None], gradients - self._g, torch.zeros_like(step))
        self._x = self._x + s
        self._f = torch.where(taken, values, self._f)
        self._g = torch.where(taken[:, None], gradients, self._g)
        direction = self._remember(s, y)
        downhill = (direction * self._g).sum(dim=1) < 0
        downhill &= direction.isfinite().all(dim=1)
        exhausted = ~taken & (self._cuts + 1 >= REJECTIONS)
        self._stuck |= exhausted & self._steep
        forget = (taken & ~downhill & (self._count > 0)) | exhausted
        self._count = torch.where(forget, 0, self._count)
        steep = forget | (taken & (self._count == 0))
        self._d = torch.where(taken[:, None], direction, self._d)
        self._d = torch.where(steep[:, None], -self._g, self._d)
        gentle = 1 / self._g.abs().sum(dim=1).clamp(min=torch.finfo(s.dtype).tiny)
        self._t = torch.where(taken, torch.ones_like(self._t), self._t * SHRINK)
        self._t = torch.where(steep, gentle, self._t)
        self._steep = torch.where(taken | forget, steep, self._steep)
        self._cuts = torch.where(taken | forget, 0, self._cuts + 1)

    def _remember(self, s: Tensor, y: Tensor) -> Tensor:
        """Take in steps s and changes of gradient y, (R, n); returns -H g, (R, n).

        `_pairs` holds each row's s in a ring of m slots, then its y; the products s.y and y.y are
        kept from the oldest pair to the newest, rows with fewer pairs having them at the end.
        """
        rows, history = len(s), self._sy.shape[1]
        every = torch.arange(rows, device=s.device)
        curved = (s * y).sum(dim=1) > CURVED * s.norm(dim=1) * y.norm(dim=1)
        slot = self._count % history
        for new, at in ((s, slot), (y, slot + history)):
            self._pairs[every, at] = torch.where(curved[:, None], new, self._pairs[every, at])
        self._count = self._count + curved
        # Stacked as rows: a batched product with columns is several times slower.
        products = (torch.stack([y, self._g], dim=1) @ self._pairs.mT).double()
        ages = torch.arange(history, device=s.device)
        order = (self._count[:, None] - history + ages) % history
        there = ages >= history - self._count[:, None]
        both = torch.cat([order, order + history], dim=1)
        with_y, with_g = products.gather(2, both[:, None].expand(-1, 2, -1)).unbind(dim=1)
        self._sy = _taken_in(self._sy, with_y[:, :history], curved)
        self._yy = _taken_in(self._yy, with_y[:, history:], curved)

        a, b = with_g[:, :history] * there, with_g[:, history:] * there
        diagonal, last = self._sy.diagonal(dim1=1, dim2=2), self._yy[:, -1, -1]
        gamma = torch.where(there[:, -1], diagonal[:, -1] / last, 1.0)[:, None]
        # Rows with fewer pairs have older ones, or the identity, above and left of theirs: these
        # are regular, and change nothing where the vectors are zero.
        # Of a triangular matrix the other triangle is not read.
        u = torch.linalg.solve_triangular(self._sy, a[..., None], upper=True)
        u = torch.where(there[..., None], u, 0.0)
        v = diagonal[..., None] * u + gamma[..., None] * (self._yy @ u - b[..., None])
        v = torch.where(there[..., None], v, 0.0)
        p = torch.linalg.solve_triangular(self._sy.mT, v, upper=False)
        weights = torch.cat([p[..., 0], -gamma * u[..., 0]], dim=1)
        weights = torch.zeros_like(weights).scatter(1, both, weights).to(s)
        direction: Tensor = -(gamma.to(s) * self._g + (weights[:, None] @ self._pairs)[:, 0])
        return direction

    def restart(self, row: int, start: Tensor) -> None:
        """Start a row anew from a point (n,), without any state."""
        self._x[row] = start
        self._f[row] = torch.inf
        self._g[row] = self._d[row] = 0.0
        self._t[row] = 0.0
        self._cuts[row] = self._count[row] = 0
        self._steep[row] = self._stuck[row] = False


def _taken_in(matrices: Tensor, newest: Tensor, those: Tensor) -> Tensor:
    """Shift matrices (R, m, m) up and left by one and append a last row and column (R, m).

    Rows outside the mask `those` (R,) bool are returned unchanged. The mask is applied by
    `torch.where`, because indexing by it would synchronise with a GPU.
    """
    moved = matrices.roll((-1, -1), dims=(1, 2))
    moved[:, -1] = moved[:, :, -1] = newest
    return torch.where(those[:, None, None], moved, matrices)
