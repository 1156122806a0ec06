"""The update of several local steps of SGD on dummy examples, differentiable (unrolled FedAvg)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsim.gradients.distances import Gradients
from fedsim.victim import VictimModel


class LossModule(nn.Module):
    """A loss as a module, so that `functional_call` can replace the weights of `module`.

    Args:
        module: The model.
        loss: Computes a loss from batches by calling that model.
    """

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.module, self._loss = module, loss

    def forward(self, *args: Any, **settings: Any) -> Tensor:
        """Compute the loss."""
        return self._loss(*args, **settings)


def unrolled_gradient(
    model: VictimModel,
    inputs: Tensor,
    target: Tensor,
    *,
    lr: float,
    steps: int,
    at: str = "input",
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:
    """Compute the average gradient (w_0 - w_K) / (lr K) of K plain SGD steps.

    This is the gradient that `to_gradient` computes from the update of a client that took these
    steps. It can be differentiated with respect to inputs and soft targets, through all steps
    (Geiping et al., Inverting Gradients, NeurIPS 2020, section 6; first used for matching in
    Dimitrov et al., Data Leakage in Federated Averaging, TMLR 2022). Memory grows with K times the
    parameters. Momentum and weight decay are left out, since no observation has them; with them
    the result is approximate. The model is not changed: weights and buffers are copied.

    Examples are split into K batches in their order, of N / K examples or one more. The true order
    is unknown: an optimised example adapts to its step, but a hard label cannot, so that several
    orders of labels are worth trying. An example that a client used in two steps is two here.

    Args:
        model: The victim's model.
        inputs: (N, ...), N >= K.
        target: Hard labels (N,) int64, or soft ones (N, classes).
        lr: Learning rate of the local steps.
        steps: Their number K.
        at: The point at which inputs are fed.
        names: Parameters whose gradient is returned; all are trained.

    Returns:
        The average gradient by parameter name.

    Raises:
        ValueError: There are fewer examples than steps.
    """
    if not 1 <= steps <= len(inputs):
        raise ValueError(
            f"{len(inputs)} examples cannot be cut into {steps} local steps: each takes at least "
            "one. Where examples repeat, give them as often as they were used"
        )
    wanted = list(names) if names is not None else list(model.parameters())
    loss = LossModule(model.module, model.loss)
    weights = {
        name: parameter.detach().requires_grad_() for name, parameter in model.parameters().items()
    }
    buffers = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    total = {name: torch.zeros_like(weights[name]) for name in wanted}
    cut = zip(inputs.tensor_split(steps), target.tensor_split(steps), strict=True)
    for batch, labels in cut:
        state = {f"module.{name}": value for name, value in {**weights, **buffers}.items()}
        value = functional_call(loss, state, (batch, labels), {"at": at})
        found = torch.autograd.grad(
            value, list(weights.values()), create_graph=True, materialize_grads=True
        )
        gradient = dict(zip(weights, found, strict=True))
        # Summing gradients, not weights: w_0 - w_K would lose digits where lr is small.
        total = {name: sofar + gradient[name] for name, sofar in total.items()}
        weights = {name: weight - lr * gradient[name] for name, weight in weights.items()}
    return {name: value / steps for name, value in total.items()}


def local_steps(
    steps: int, lr: float
) -> Callable[[VictimModel, list[str]], Callable[[Tensor, Tensor], Gradients]]:
    """The `simulate` argument of `Problem` for local steps: average gradients of dummy batches."""

    def simulate(model: VictimModel, names: list[str]) -> Callable[[Tensor, Tensor], Gradients]:
        def gradients(inputs: Tensor, targets: Tensor) -> Gradients:
            each = [
                unrolled_gradient(model, one, target, lr=lr, steps=steps, names=names)
                for one, target in zip(inputs, targets, strict=True)
            ]
            return {name: torch.stack([one[name] for one in each]) for name in names}

        return gradients

    return simulate
