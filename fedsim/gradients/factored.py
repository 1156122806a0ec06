"""Gradients of sequences as sums of outer products, a term a step: never C x d, however large.

A weight that L steps share has a gradient of rank L at most, sum_i delta_i x_i'. Both what a dummy
sequence sends and what was observed are kept in factors, so that a head of 16k word pieces costs
L (C + d) and not C d.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.gradients.rank import numerical_rank, rounding
from fedsim.victim import VictimModel

__all__ = ["Factored", "FactoredGradients", "Leading", "leading", "numerical_rank", "rounding"]

Factored = tuple[Tensor, Tensor]
"""R matrices left' right: left (R, k, out), right (R, k, in)."""

OVERSAMPLED = 8
POWERS = 3
"""Of the randomised range finder: more columns than asked for, and power iterations."""


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """The leading part U diag(s) V' of a matrix: u (out, r), s (r,) descending, v (in, r).

    Or of several, dimensions in front, that go with those of what is compared to them.
    """

    u: Tensor
    s: Tensor
    v: Tensor

    def squared_distance(self, ours: Factored) -> Tensor:
        """||left' right - U diag(s) V'||^2 for each of R, (R,); differentiable.

        Cut into what lies in U and V, and what lies outside: four orthogonal parts, each a sum of
        squares, so that nothing cancels near a match.
        """
        left, right = ours
        a, b = left @ self.u, right @ self.v
        inside = (a.mT @ b - torch.diag_embed(self.s)).square().sum(dim=(-2, -1))
        beyond = right - b @ self.v.mT
        outside = left - a @ self.u.mT
        return (
            inside
            + (gram(a) * gram(beyond)).sum(dim=(-2, -1))
            + (gram(outside) * gram(right)).sum(dim=(-2, -1))
        )


def gram(rows: Tensor) -> Tensor:
    """Inner products (..., k, k) of rows (..., k, n)."""
    return rows @ rows.mT


def leading(matrix: Tensor, rank: int, rng: torch.Generator) -> Leading:
    """The leading `rank` singular triplets of a matrix, or fewer where it has no more.

    By random projections (Halko, Martinsson and Tropp, 2011), exact to rounding where the rank
    is no larger.
    """
    width = min(rank + OVERSAMPLED, *matrix.shape)
    start = torch.randn(matrix.shape[1], width, generator=rng, dtype=torch.float64)
    basis = torch.linalg.qr(matrix @ start.to(matrix))[0]
    for _ in range(POWERS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.mT @ basis)[0])[0]
    u, s, vh = torch.linalg.svd(basis.mT @ matrix, full_matrices=False)
    return Leading(basis @ u[:, :rank], s[:rank], vh[:rank].mT)


class FactoredGradients:
    """The gradient of the loss for each of R dummy sequences, a pass for all, in factors.

    For parameters of linear layers and of embeddings that are fed smooth labels, each used any
    number of times. model: used in the mode it is in, unchanged. names: the parameters.
    Raises `ValueError` for a parameter of another kind of layer.
    """

    def __init__(self, model: VictimModel, names: Iterable[str], *, at: str = "input") -> None:
        self.model, self.names, self.at = model, list(names), at
        owners = {name.rpartition(".")[0] for name in self.names}
        modules = dict(model.module.named_modules())
        self._layers = {name: modules[name] for name in sorted(owners)}
        for name, layer in self._layers.items():
            if not isinstance(layer, nn.Linear | nn.Embedding):
                raise ValueError(
                    f"'{name}' is a {type(layer).__name__}; gradients come in factors for linear "
                    "layers and embeddings alone. Leave its parameters out"
                )

    def __call__(self, inputs: Tensor, targets: Tensor) -> dict[str, Tensor | Factored]:
        """inputs (R, L, ...), smooth targets (R, L, C) -> factors of each weight, biases (R, n)."""
        seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self._layers}

        def keep(name: str) -> Any:
            return lambda _module, args, output: seen[name].append((args[0], output))

        hooks = [layer.register_forward_hook(keep(name)) for name, layer in self._layers.items()]
        try:
            # The loss is a mean over R sequences of equal length; each one's is R times its share.
            loss = self.model.loss(inputs, targets, at=self.at) * len(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        outputs = [output for uses in seen.values() for _, output in uses]
        back = iter(torch.autograd.grad(loss, outputs, create_graph=True, materialize_grads=True))
        found: dict[str, Tensor | Factored] = {}
        for name, uses in seen.items():
            deltas = [next(back) for _ in uses]
            entered = torch.cat([_steps(x) for x, _ in uses], dim=1)
            delta = torch.cat([_steps(d) for d in deltas], dim=1)
            turned = isinstance(self._layers[name], nn.Embedding)
            found[f"{name}.weight"] = (entered, delta) if turned else (delta, entered)
            found[f"{name}.bias"] = delta.sum(dim=1)
        return {name: found[name] for name in self.names}


def _steps(value: Tensor) -> Tensor:
    """(R, n) as one step, (R, 1, n); (R, L, n) as it is."""
    return value[:, None] if value.ndim == 2 else value
