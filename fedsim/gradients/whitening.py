"""A distance of gradients in which small singular directions count like large ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class _Matrix:
    """An observed gradient G = U diag(s) V' of unit norm, (m, n), and its whitening.

    Attributes:
        observed: G.
        out: (U (s + floor) U')^-1/2, (m, m), with the floor alone outside U.
        right: V, (n, r).
        inner: (s + floor)^-1/2 - floor^-1/2, (r,).
        rest: floor^-1/2.
        count: Number of singular values r.
    """

    observed: Tensor
    out: Tensor
    right: Tensor
    inner: Tensor
    rest: float
    count: int

    @classmethod
    def of(cls, matrix: Tensor, floor: float) -> "_Matrix":
        left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
        least = floor * float(values[0])
        rest = least**-0.5
        scale = (values + least).rsqrt() - rest
        out = rest * torch.eye(len(matrix), dtype=left.dtype, device=left.device)
        out = out + left * scale @ left.T
        kind = matrix.dtype
        return cls(matrix, out.to(kind), right.T.to(kind), scale.to(kind), rest, len(values))

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
            name: bias
            for name in self.names
            if (bias := name.replace("weight", "bias")) != name and bias in theirs
        }
        self.parts: dict[str, _Matrix] = {}
        for name in self.names:
            matrix = self._joined({key: value[None] for key, value in theirs.items()}, name)[0]
            if not bool(matrix.any()):
                raise ValueError(f"the gradient of '{name}' is zero throughout")
            self.parts[name] = _Matrix.of(matrix / matrix.norm(), floor)

    def __call__(self, ours: Mapping[str, Tensor]) -> Tensor:
        """Distances (R,) of gradients (R, *shape) by parameter name, the mean over matrices."""
        each = [part.distance(self._joined(ours, name)) for name, part in self.parts.items()]
        return torch.stack(each).mean(dim=0)

    def _joined(self, gradients: Mapping[str, Tensor], name: str) -> Tensor:
        matrix = gradients[name].flatten(2)
        if name in self.biases:
            matrix = torch.cat([matrix, gradients[self.biases[name]][:, :, None]], dim=2)
        return matrix
