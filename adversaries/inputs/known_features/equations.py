"""The equations of a batch whose features are known, and their derivatives."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from adversaries.inputs.known_features import KnownBatch
from adversaries.inputs.self_check import in_float64
from fedsim import VictimModel
from fedsim.gradients import DummyGradients, head_calls
from fedsim.gradients.distances import dense

ROWS = 128
"""Directions that are differentiated at a time."""


class BatchEquations:
    """Features h(x_i) = h_i of each example, and the batch's gradient below the head, sum g_i(x_i).

    With known errors E_i of the logits, the gradient of an example below the head is that of
    <E_i, logits(x_i)>: examples do not depend on each other. Equations are scaled: of the features
    by their standard deviation, of a parameter's gradient by its root mean square.

    Args:
        model: The victim's model, of linear layers and plain convolutions.
        gradient: The observed gradient by parameter name.
        weights: The parameters that count, and how much the square of their equations does.
        known: Features, labels and errors.
        shape: The shape of an input.

    Raises:
        ValueError: The model has other layers, drops units, or no gradient below its head was sent;
            or the gradient holds NaN or Inf.
    """

    def __init__(
        self,
        model: VictimModel,
        gradient: Mapping[str, Tensor],
        weights: Mapping[str, float],
        known: KnownBatch,
        shape: tuple[int, ...],
    ) -> None:
        if model.drops:
            raise ValueError("the model drops units at random, and which ones is not known")
        self._names = [name for name in weights if not name.startswith(f"{model.head}.")]
        if not self._names:
            raise ValueError("no gradient below the head was sent, which inputs could match")
        exact = in_float64(model)
        like = next(exact.module.parameters())
        classes = known.errors.shape[1]
        self._exact = _Examples(exact, self._names, shape, classes)
        fast = exact.copy()
        fast.module.float()
        self._fast = _Examples(fast, self._names, shape, classes)
        self._features, self._errors = known.features.to(like), known.errors.to(like)
        parts = [gradient[name].to(like).flatten() for name in self._names]
        for name, part in zip(self._names, parts, strict=True):
            if not part.isfinite().all():
                raise ValueError(f"the gradient of '{name}' holds NaN or Inf")
        self._observed = torch.cat(parts)
        self._scales = torch.cat(
            [
                torch.full_like(part, weights[name] ** 0.5) / _size(part)
                for name, part in zip(self._names, parts, strict=True)
            ]
        )
        self._feature_scale = 1 / _size(self._features - self._features.mean())

    @property
    def examples(self) -> int:
        """The number of examples B."""
        return len(self._errors)

    @property
    def number(self) -> int:
        """The number of equations, B d + P."""
        return self._features.numel() + len(self._observed)

    @property
    def features(self) -> int:
        """The number of features d, the first equations of each example."""
        return self._features.shape[1]

    def missed(self, inputs: Tensor) -> Tensor:
        """By what inputs (B, *shape) float64 miss each equation, features first, (B d + P,)."""
        features, gradients = self._exact(inputs, self._errors)
        apart = self._feature_scale * (features - self._features)
        rest = self._scales * (gradients.sum(dim=0) - self._observed)
        return torch.cat([apart.flatten(), rest]).detach()

    def slopes(
        self, example: int, at: Tensor, directions: Tensor, *, exact: bool = False
    ) -> Tensor:
        """How the equations of one example change.

        Args:
            example: Its number.
            at: Its input (*shape).
            directions: (n, *shape).
            exact: Compute in float64, which takes about five times as long as in float32.

        Returns:
            The derivatives of its features and of the gradient in each direction, (n, d + P)
            float64.

        Raises:
            ValueError: PyTorch has no forward derivative of the model's gradient.
        """
        found = []
        compute, dtype = (self._exact, torch.float64) if exact else (self._fast, torch.float32)
        errors = self._errors[example].to(dtype)
        for some in torch.split(directions.to(dtype), ROWS):
            rows = len(some)
            with forward_ad.dual_level():
                there = at.to(dtype).expand_as(some).contiguous()
                moved = forward_ad.make_dual(there, some)  # type: ignore[no-untyped-call]
                try:
                    values = compute(moved, errors.expand(rows, -1))
                except NotImplementedError as error:
                    raise ValueError(
                        "PyTorch has no forward derivative of the model's gradient, by which "
                        f"inputs are found ({error}): set features_from = 'none'"
                    ) from error
                changes = [
                    forward_ad.unpack_dual(value).tangent  # type: ignore[no-untyped-call]
                    for value in values
                ]
            scaled = (self._feature_scale * changes[0].double(), self._scales * changes[1].double())
            found.append(torch.cat(scaled, dim=1).detach())
        return torch.cat(found)


class _Examples:
    """The features of single examples, and their parts of the gradient below the head."""

    def __init__(
        self, model: VictimModel, names: list[str], shape: tuple[int, ...], classes: int
    ) -> None:
        self._names = names
        self._model = VictimModel(model.module, head=model.head, loss=_pulled)
        self._gradients = DummyGradients(self._model, names, shape=shape, classes=classes)
        if not self._gradients.batched:
            raise ValueError(
                "the model has other layers than linear ones and convolutions, or examples that "
                "depend on each other: set features_from = 'none', or use inverting-gradients"
            )

    def __call__(self, inputs: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Features (R, d) and gradients (R, P) of inputs (R, *shape), given errors (R, classes)."""
        with head_calls(self._model) as calls:
            found = self._gradients(inputs[:, None], errors[:, None])
        parts = [dense(found[name]).flatten(1) for name in self._names]
        return calls[0][0].flatten(1), torch.cat(parts, dim=1)


def _pulled(module: nn.Module, inputs: Tensor, target: Tensor, **_: Any) -> Tensor:
    """<target, logits>, the mean over examples."""
    logits: Tensor = module(inputs)
    return (logits * target).sum() / len(inputs)


def _size(values: Tensor) -> Tensor:
    """The root mean square of values, one where all are zero."""
    found = values.square().mean().sqrt()
    return torch.where(found > 0, found, torch.ones_like(found))
