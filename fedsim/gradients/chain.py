"""Gradients of dummy batches for chains of layers, differentiated by hand.

Matching needs the derivative of sum_l <E_l, dL/dW_l> by the inputs, where E_l is the derivative of
the distance by the gradient. Autograd records some hundred operations for it and runs them
backwards. Here both passes are written out, so that they share patches and folds.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedsim.gradients.chain_steps import STEPS
from fedsim.gradients.distances import Gradients, Outer, dense
from fedsim.victim import VictimModel

AGREES = 1e-3
"""Largest difference from autograd, relative to the norm, that counts as rounding."""


class ChainGradients:
    """The gradients of the cross-entropy for R dummy batches, of a model that is one chain.

    A chain is an `nn.Sequential` of linear layers, plain 2-d convolutions, sigmoids, tanh and
    `nn.Flatten`. The results can be differentiated once by inputs and targets, not twice, and
    computing them does not call the model.

    Args:
        model: The victim's model.
        layers: Its layers in order, by name (`chain_of`).
        names: Names of the parameters.
    """

    def __init__(
        self, model: VictimModel, layers: dict[str, nn.Module], names: Iterable[str]
    ) -> None:
        self.model, self.names = model, list(names)
        self.steps = [STEPS[type(layer)](name, layer, self.names) for name, layer in layers.items()]

    @classmethod
    def of(
        cls, model: VictimModel, names: Iterable[str], *, shape: tuple[int, ...], classes: int
    ) -> "ChainGradients | None":
        """The gradients of a model, if it is a chain and autograd finds the same derivatives.

        Args:
            model: The victim's model, which is not changed.
            names: Names of the parameters.
            shape: Shape of one input, without the batch.
            classes: Number of classes of a soft label.
        """
        layers = chain_of(model.module)
        if layers is None:
            return None
        found = cls(model, layers, names)
        return found if found._agrees(shape, classes) else None

    def __call__(self, inputs: Tensor, targets: Tensor) -> Gradients:
        """Compute the gradients of R batches.

        Args:
            inputs: (R, B, ...).
            targets: Soft labels (R, B, classes).

        Returns:
            By name, tensors (R, *shape); for the weight of a linear layer `Outer` products if B
            is 1.
        """
        values = iter(_Gradients.apply(inputs, targets, self))  # type: ignore[no-untyped-call]
        found: dict[str, Tensor | Outer] = {}
        for step in self.steps:
            for key in step.wanted:
                value = next(values)
                if key == "weight" and step.factors(inputs.shape[1]):
                    found[f"{step.name}.{key}"] = Outer(value, next(values))
                else:
                    found[f"{step.name}.{key}"] = value
        return {name: found[name] for name in self.names}

    def _agrees(self, shape: tuple[int, ...], classes: int) -> bool:
        """Compare gradients and their derivatives with autograd's, on two random batches of two."""
        like = next(self.model.module.parameters())
        rng = torch.Generator().manual_seed(0)
        inputs = torch.rand((2, 2, *shape), generator=rng).to(like).requires_grad_(True)
        targets = torch.rand((2, 2, classes), generator=rng).softmax(dim=2).to(like)
        targets.requires_grad_(True)
        state = torch.random.get_rng_state()
        try:
            ours = [dense(value) for value in self(inputs, targets).values()]
            each = [
                self.model.gradient(one, target, names=self.names, create_graph=True)
                for one, target in zip(inputs, targets, strict=True)
            ]
            theirs = [torch.stack([one[name] for one in each]) for name in self.names]
            for found in (ours, theirs):
                total = torch.stack([value.square().sum() for value in found]).sum()
                found += torch.autograd.grad(total, (inputs, targets))
        except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
            return False
        finally:
            torch.random.set_rng_state(state)
        return all(
            float((a - b).detach().norm()) <= AGREES * float(b.detach().norm())
            for a, b in zip(ours, theirs, strict=True)
        )


def chain_of(module: nn.Module) -> dict[str, nn.Module] | None:
    """The layers of a module in order, by name; None if it is no chain."""
    if type(module) is not nn.Sequential:
        return None
    found: dict[str, nn.Module] = {}
    for name, layer in module._modules.items():  # `named_children` leaves out repeated ones
        if layer is None:
            return None
        inner = {"": layer} if type(layer) in STEPS else chain_of(layer)
        if inner is None:
            return None
        found |= {f"{name}.{key}" if key else name: each for key, each in inner.items()}
    convolutions = [each for each in found.values() if isinstance(each, nn.Conv2d)]
    plain = all(
        each.groups == 1
        and each.padding_mode == "zeros"
        and each.dilation == (1, 1)
        and not isinstance(each.padding, str)
        for each in convolutions
    )
    flat = all(
        (each.start_dim, each.end_dim) == (1, -1)
        for each in found.values()
        if isinstance(each, nn.Flatten)
    )
    weighted = [each for each in found.values() if list(each.parameters())]
    return found if plain and flat and len(set(weighted)) == len(weighted) > 0 else None


class _Gradients(torch.autograd.Function):
    """The gradients as a function of inputs (R, B, ...) and targets (R, B, classes).

    With z a layer's output, h an activation's, and a' and z' the derivatives of the loss, the
    gradient pass is a' = W^T z', z' = a' s'(h) and dL/dW = z' a^T. Its own derivative goes along
    the pass first, from the inputs' side to the logits, and then back along the forward pass.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, inputs: Tensor, targets: Tensor, chain: ChainGradients
    ) -> tuple[Tensor, ...]:
        rows, size = inputs.shape[:2]
        value, kept = inputs.flatten(0, 1), []
        for step in chain.steps:
            value, own = step.forward(value)
            kept.append(own)
        labels = targets.flatten(0, 1)
        probabilities, sums = value.softmax(dim=1), labels.sum(dim=1, keepdim=True)
        delta = (probabilities * sums - labels) / size
        found: list[list[Tensor]] = []
        first = min(at for at, step in enumerate(chain.steps) if step.weighs)
        for at in range(len(chain.steps) - 1, first - 1, -1):
            found.append(chain.steps[at].gradients(delta, kept[at], rows))
            delta = chain.steps[at].back(delta, kept[at]) if at > first else delta
        ctx.steps, ctx.kept, ctx.first = chain.steps, kept, first
        ctx.softmax = probabilities, sums, size
        ctx.shapes = inputs.shape, targets.shape
        return tuple(value for each in reversed(found) for value in each)

    @staticmethod
    @once_differentiable
    def backward(ctx, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        given, rows = iter(slopes), ctx.shapes[0][0]
        by: Tensor | None = None
        for step, own in list(zip(ctx.steps, ctx.kept, strict=True))[ctx.first :]:
            by = step.along(by, own, given, rows)
        assert by is not None  # noqa: S101 - the first of these steps has weights
        probabilities, sums, size = ctx.softmax
        mean = (probabilities * by).sum(dim=1, keepdim=True)
        by_labels = (mean - by) / size
        by = sums * probabilities * (by - mean) / size
        for step, own in reversed(list(zip(ctx.steps, ctx.kept, strict=True))):
            by = step.down(by, own)
        return by.view(ctx.shapes[0]), by_labels.view(ctx.shapes[1]), None
