"""Gradients of sequences as sums of outer products, one term for each step.

A weight that L steps share has the gradient sum_i delta_i x_i', whose rank is L at most. Gradients
of dummy sequences and observed ones are kept in factors, so that a head of C = 16,000 word pieces
costs L (C + d) operations instead of C d.
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
"""Additional columns and power iterations of the randomised range finder."""


@dataclass(frozen=True, slots=True, eq=False)
class Leading:
    """The leading part U diag(s) V' of a matrix, or of several matrices.

    Attributes:
        u: Left singular vectors (..., out, r).
        s: Singular values (..., r), largest first.
        v: Right singular vectors (..., in, r).
    """

    u: Tensor
    s: Tensor
    v: Tensor

    def squared_distance(self, ours: Factored) -> Tensor:
        """Compute ||left' right - U diag(s) V'||^2 for each of R products; differentiable.

        The difference is split into four orthogonal parts, inside and outside U and V, each of
        which is a sum of squares, so that nothing cancels near a match.

        Args:
            ours: Factors left (R, k, out) and right (R, k, in).

        Returns:
            Squared distances (R,).
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
    """Compute the leading singular triplets of a matrix by random projections.

    Source: Halko, Martinsson and Tropp, Finding structure with randomness, 2011. The result is
    exact up to rounding if the matrix has no larger rank.

    Args:
        matrix: Matrix (out, in).
        rank: Number of triplets at most.
        rng: Draws the projection.
    """
    width = min(rank + OVERSAMPLED, *matrix.shape)
    start = torch.randn(matrix.shape[1], width, generator=rng, dtype=torch.float64)
    basis = torch.linalg.qr(matrix @ start.to(matrix))[0]
    for _ in range(POWERS):
        basis = torch.linalg.qr(matrix @ torch.linalg.qr(matrix.mT @ basis)[0])[0]
    u, s, vh = torch.linalg.svd(basis.mT @ matrix, full_matrices=False)
    return Leading(basis @ u[:, :rank], s[:rank], vh[:rank].mT)


class FactoredGradients:
    """The gradients of the loss for R dummy sequences, in factors, computed in one pass.

    Parameters must belong to linear layers, or to embeddings that are fed smooth labels; a layer
    may be used any number of times.

    Args:
        model: The victim's model, which is used in its present mode and not changed.
        names: Names of the parameters.
        at: The point at which inputs are fed.

    Raises:
        ValueError: A parameter belongs to another kind of layer.
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
        """Compute the gradients of R sequences.

        Args:
            inputs: (R, L, ...).
            targets: Smooth labels (R, L, C).

        Returns:
            By name, factors of each weight and tensors (R, n) of each bias.
        """
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
