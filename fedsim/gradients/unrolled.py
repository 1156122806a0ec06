"""What an honest client's local steps on dummy examples would have sent: FedAvg, unrolled."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsim.gradients.distances import Gradients
from fedsim.victim import VictimModel

__all__ = ["local_steps", "unrolled_gradient"]


class _TrainingLoss(nn.Module):
    """A victim's training loss as a module, so that its model's weights can be exchanged."""

    def __init__(self, model: VictimModel) -> None:
        super().__init__()
        self.module = model.module
        self._model = model

    def forward(self, *args: Any, **settings: Any) -> Tensor:
        return self._model.loss(*args, **settings)


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
    """The average gradient (w_0 - w_K) / (lr K) of K = `steps` plain SGD steps, by parameter name.

    It is what `to_gradient` reads off a client that took these steps, and can be differentiated
    with respect to inputs and soft targets, through all steps (Geiping et al., Inverting
    Gradients, NeurIPS 2020, section 6; first used for matching in Dimitrov et al., Data Leakage in
    Federated Averaging, TMLR 2022). Memory grows with K times the parameters.

    inputs: (N, ...), N >= K; target: hard (N,) int64 or soft (N, classes). They are cut into K
    batches in the order in which they come, of N / K examples or one more: a true order is not
    known, so a dummy example makes itself at home in whichever step it stands. A hard label cannot,
    so that several orders of labels are worth trying. An example that a client used in two steps
    counts as two here. lr: of the local optimizer. Momentum and weight decay are left out, since no
    observation carries them: with them the result is approximate. at: where the model is fed.
    names: parameters that are returned; all are trained.

    The model is left as it is: weights and buffers (batch statistics) live in copies. Raises
    `ValueError` where there are fewer examples than steps.
    """
    if not 1 <= steps <= len(inputs):
        raise ValueError(
            f"{len(inputs)} examples cannot be cut into {steps} local steps: each takes at least "
            "one. Where examples repeat, give them as often as they were used"
        )
    wanted = list(names) if names is not None else list(model.parameters())
    loss = _TrainingLoss(model)
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
    """What `Problem` asks for: the average gradients of local steps on dummy batches."""

    def simulate(model: VictimModel, names: list[str]) -> Callable[[Tensor, Tensor], Gradients]:
        def gradients(inputs: Tensor, targets: Tensor) -> Gradients:
            each = [
                unrolled_gradient(model, one, target, lr=lr, steps=steps, names=names)
                for one, target in zip(inputs, targets, strict=True)
            ]
            return {name: torch.stack([one[name] for one in each]) for name in names}

        return gradients

    return simulate
