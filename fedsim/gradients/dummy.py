"""Gradients of many dummy batches in one differentiable pass."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.gradients.distances import Gradients, Outer, dense
from fedsim.gradients.head import layer_calls
from fedsim.victim import VictimModel

AGREES = 1e-3
"""Largest difference of a parameter's gradient from autograd's, relative to its norm, that counts
as rounding."""


class DummyGradients:
    """The gradients of the loss for R dummy batches, by parameter name.

    One forward and one backward pass compute all R: the weight gradient of a layer for one batch is
    the product of the layer's inputs and the loss's gradient at its outputs. This needs linear
    layers and plain 2-d convolutions, each used once, and examples that are independent of one
    another (no batch statistics). With any other model the batches are computed one by one.
    `batched` says which; it is tested on two random batches.

    If a batch holds one example, the weight gradient of a linear layer is an `Outer` product.

    Args:
        model: The victim's model, which is used in its present mode and not changed.
        names: Names of the parameters.
        shape: Shape of one input, without the batch.
        classes: Number of classes of a soft label.
    """

    def __init__(
        self, model: VictimModel, names: Iterable[str], *, shape: tuple[int, ...], classes: int
    ) -> None:
        self.model = model
        self.names = list(names)
        self._layers = _layers(model.module, self.names)
        self.batched = self._layers is not None and self._agrees(shape, classes)

    def __call__(self, inputs: Tensor, targets: Tensor) -> Gradients:
        """Compute the gradients of R batches.

        Args:
            inputs: (R, B, ...).
            targets: Soft labels (R, B, classes), or hard ones (R, B) int64.

        Returns:
            By name, tensors (R, *shape) or `Outer` products.
        """
        if self.batched:
            return self._together(inputs, targets)
        return self._in_turn(inputs, targets)

    def _in_turn(self, inputs: Tensor, targets: Tensor) -> Gradients:
        found = [
            self.model.gradient(one, target, names=self.names, create_graph=True)
            for one, target in zip(inputs, targets, strict=True)
        ]
        return {name: torch.stack([each[name] for each in found]) for name in self.names}

    def _together(self, inputs: Tensor, targets: Tensor) -> Gradients:
        assert self._layers is not None  # noqa: S101 - `batched` says so
        rows, size = inputs.shape[:2]
        with layer_calls(self._layers) as calls:
            # The loss is a mean over R x B examples; each batch's own is R times its share.
            loss = self.model.loss(inputs.flatten(0, 1), targets.flatten(0, 1)) * rows
        if wrong := [name for name, uses in calls.items() if len(uses) != 1]:
            raise RuntimeError(f"'{wrong[0]}' is not used once")
        outputs = [output for [(_, output)] in calls.values()]
        backward = torch.autograd.grad(loss, outputs, create_graph=True)
        found: dict[str, Tensor | Outer] = {}
        for (name, layer), delta in zip(self._layers.items(), backward, strict=True):
            [(entered, _)] = calls[name]
            if isinstance(layer, nn.Conv2d):
                delta = delta.flatten(2)
                padding = layer.padding if isinstance(layer.padding, tuple) else (0, 0)
                entered = functional.unfold(
                    entered, layer.kernel_size, layer.dilation, padding, layer.stride
                )
            else:
                delta, entered = (
                    x.flatten(1, -2).mT if x.ndim > 2 else x.unsqueeze(2) for x in (delta, entered)
                )
            # Both (R B, features, places) now: sum the products over a batch's examples and places.
            delta, entered = (x.view(rows, size, *x.shape[1:]) for x in (delta, entered))
            for name_, parameter in self._wanted(name, layer):
                if parameter.ndim == 1:
                    found[name_] = delta.sum(dim=(1, 3))
                elif size == 1 and delta.shape[3] == 1 and isinstance(layer, nn.Linear):
                    found[name_] = Outer(delta[:, 0, :, 0], entered[:, 0, :, 0])
                else:
                    mine = delta.transpose(1, 2).flatten(2)
                    other = entered.transpose(1, 2).flatten(2)
                    found[name_] = (mine @ other.mT).view(rows, *parameter.shape)
        return {name: found[name] for name in self.names}

    def _wanted(self, name: str, layer: nn.Module) -> list[tuple[str, Tensor]]:
        own = ((f"{name}.{key}" if name else key, p) for key, p in layer.named_parameters())
        return [(key, p) for key, p in own if key in self.names]

    def _agrees(self, shape: tuple[int, ...], classes: int) -> bool:
        """Test on two random batches of two whether one pass gives autograd's gradients."""
        like = next(self.model.module.parameters())
        rng = torch.Generator().manual_seed(0)
        inputs = torch.rand((2, 2, *shape), generator=rng).to(like)
        targets = torch.rand((2, 2, classes), generator=rng).softmax(dim=2).to(like)
        state = torch.random.get_rng_state()
        try:
            fast = self._together(inputs, targets)
        except (RuntimeError, ValueError, TypeError, AttributeError):
            return False
        finally:
            torch.random.set_rng_state(state)
        slow = self._in_turn(inputs, targets)
        torch.random.set_rng_state(state)
        with torch.no_grad():
            exact = {n: dense(slow[n]) for n in self.names}
            apart = {n: float((dense(fast[n]) - exact[n]).norm()) for n in self.names}
            sizes = {n: float(exact[n].norm()) for n in self.names}
        # Of a gradient that is zero but for rounding, rounding is relative to the others.
        rest = AGREES * math.hypot(*sizes.values())
        return all(apart[n] <= AGREES * (sizes[n] + rest) for n in self.names)


def _layers(module: nn.Module, names: list[str]) -> dict[str, nn.Module] | None:
    """Return the layers of these parameters in the model's order; None if one is unsupported."""
    wanted = {name.rpartition(".")[0] for name in names}
    found: dict[str, nn.Module] = {}
    for name, layer in module.named_modules():
        if name in wanted:
            plain = type(layer) is nn.Linear or (
                type(layer) is nn.Conv2d
                and layer.groups == 1
                and layer.padding_mode == "zeros"
                and not isinstance(layer.padding, str)
            )
            if not plain:
                return None
            found[name] = layer
    return found if found.keys() == wanted else None
