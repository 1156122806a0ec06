"""A head's gradient in the coordinates of its row space."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import svd
from torch.nn import functional

BELOW = 1e-2
"""Weight of negative features, as shares of the norm of all, beside the equations."""


@dataclass(frozen=True, slots=True)
class ReducedHead:
    """What the equations of a head need, with features H = M R.

    Attributes:
        basis: R (B, d), an orthonormal basis of the row space of dW.
        target: Q = dW R' (C, B).
        logits: R W' (B, C): the logits of examples M are M R W' + b.
        bias: b (C,), zeros for a head without one.
        sums: db (C,), or None.
        scale: The norm of Q.
        sum_scale: The norm of db; 1 if there is none.
        below_scale: By what negative features are divided.
        nonnegative: Whether no feature can be negative.
    """

    basis: Tensor
    target: Tensor
    logits: Tensor
    bias: Tensor
    sums: Tensor | None
    scale: float
    sum_scale: float
    below_scale: float
    nonnegative: bool

    @classmethod
    def of(
        cls,
        weight_gradient: Tensor,
        bias_gradient: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        size: int,
        nonnegative: bool = False,
    ) -> "ReducedHead":
        """Reduce a head.

        Args:
            weight_gradient: dW (C, d) float64.
            bias_gradient: db (C,), None for a head without bias.
            weight: W (C, d).
            bias: b (C,), or None.
            size: The number of examples B.
            nonnegative: Whether no feature can be negative.
        """
        basis = svd(weight_gradient, full_matrices=False)[2][:size]
        target = weight_gradient @ basis.T
        scale = float(target.norm())
        return cls(
            basis,
            target,
            basis @ weight.T,
            torch.zeros(len(weight)).to(weight) if bias is None else bias,
            bias_gradient,
            scale,
            1.0 if bias_gradient is None else float(bias_gradient.norm()) or 1.0,
            # Rows of E with distinct labels are almost orthogonal, of norm 1 / B: |H| is about
            # B |dW|.
            size * scale / BELOW,
            nonnegative,
        )

    @property
    def size(self) -> int:
        """The number of examples B."""
        return len(self.basis)

    def onehot(self, labels: Tensor) -> Tensor:
        """Labels (B,) as rows (B, C) in the type of the equations."""
        return functional.one_hot(labels, self.classes).to(self.bias)

    @property
    def equations(self) -> int:
        """The number of independent equations.

        Those of all classes add up to zero, so that those of one class follow.
        """
        return (self.classes - 1) * (self.size + (self.sums is not None))

    def overdetermined(self, more: int = 0) -> bool:
        """Whether there are more independent equations than unknowns.

        Args:
            more: Number of unknowns beside the B x B of the features.
        """
        return self.equations > self.size**2 + more

    @property
    def classes(self) -> int:
        """The number of classes C."""
        return len(self.bias)
