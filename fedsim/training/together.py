"""Local training of several clients at once, as one batch of models (`engine.vectorize`)."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from fedsim.defense import Defense, Training
from fedsim.errors import ScenarioError
from fedsim.gradients.unrolled import LossModule
from fedsim.records import Batch, Reduction, Update
from fedsim.training.local import update_of
from fedsim.victim import Loss

TOO_MANY = (
    "the clients of engine.vectorize need more memory than the GPU has, and are trained in smaller "
    "groups, with the same results"
)


def check_together(defenses: Sequence[Defense], optimizer: str, *, drops: bool) -> None:
    """Refuse what cannot be trained for several clients at once.

    Raises:
        ScenarioError: A defense takes part in the training, the optimizer is not SGD, or the model
            drops units at random.
    """
    own = [one.name for one in defenses if type(one).prepare is not Defense.prepare]
    reason = (
        f"the defense {own[0]} changes each client's training"
        if own
        else f'training.optimizer = "{optimizer}" is not "sgd"'
        if optimizer != "sgd"
        else "the model drops units by random numbers of each client"
        if drops
        else ""
    )
    if reason:
        raise ScenarioError(
            f"engine.vectorize trains several clients at once, and {reason}. "
            "Set engine.vectorize = 0"
        )


def train_together(
    training: Training,
    batches: Sequence[Sequence[Batch]],
    before: Mapping[str, Tensor],
    *,
    loss: Loss,
    trained: frozenset[str],
    reduction: Reduction = "example",
    proximal_mu: float = 0.0,
    warn: Callable[[str], object] = warnings.warn,
) -> list[tuple[Update, float]]:
    """Do for several clients what `train_locally` does for one, with the same sums in other order.

    Clients whose batches have the same shapes are trained at once; a GPU that runs out of memory
    gets half of them.

    Args:
        training: The training of each client, but for its batches, with a model that has the
            weights `before`.
        batches: The batches of each client. They may be on the CPU, from where those of all clients
            go to the model's device at once.
        before: The weights that the server sent, by parameter name.
        loss: The task's loss.
        trained: Names of the trained parameters.
        reduction: What the loss is a mean over.
        proximal_mu: The weight of FedProx's term, which the strategy sends.
        warn: Called with a sentence each time that the GPU has too little memory.

    Returns:
        The update and the mean training loss of each client.
    """
    alike: dict[Any, list[int]] = {}
    for place, own in enumerate(batches):
        alike.setdefault(tuple(map(_form, own)), []).append(place)
    found: dict[int, tuple[Update, float]] = {}
    groups = list(alike.values())
    while groups:
        group = groups.pop()
        some = [batches[place] for place in group]
        try:
            made = _at_once(training, some, before, loss, trained, reduction, proximal_mu)
        except torch.cuda.OutOfMemoryError:
            if len(group) == 1:
                raise
            half = len(group) // 2
            groups += [group[:half], group[half:]]
            warn(TOO_MANY)
            torch.cuda.empty_cache()
            continue
        found |= dict(zip(group, made, strict=True))
    return [found[place] for place in range(len(batches))]


def _form(batch: Batch) -> tuple[Any, ...]:
    tensors = (batch.inputs, batch.labels, batch.lengths)
    return tuple(None if one is None else (one.shape, one.dtype) for one in tensors)


def _stacked(batches: Sequence[Batch]) -> Batch:
    """The batches of several clients in one, along a new first dimension."""
    lengths = [one.lengths for one in batches if one.lengths is not None]
    return Batch(
        torch.stack([one.inputs for one in batches]),
        torch.stack([one.labels for one in batches]),
        torch.stack(lengths) if lengths else None,
    )


def _at_once(
    training: Training,
    batches: Sequence[Sequence[Batch]],
    before: Mapping[str, Tensor],
    loss: Loss,
    trained: frozenset[str],
    reduction: Reduction,
    proximal_mu: float,
) -> list[tuple[Update, float]]:
    number = len(batches)
    module = training.module.train()
    device = next(module.parameters()).device
    held = {name: p.detach() for name, p in module.named_parameters()}
    weights = {name: value for name, value in held.items() if name in trained}
    fixed = {name: value for name, value in held.items() if name not in trained}
    buffers = {
        name: value.expand(number, *value.shape).clone() for name, value in module.named_buffers()
    }

    def own_loss(inputs: Tensor, labels: Tensor, lengths: Tensor | None = None) -> Tensor:
        return loss(module, inputs, labels, lengths=lengths)

    whole = LossModule(module, own_loss)

    def mean_loss(weights: dict[str, Tensor], buffers: dict[str, Tensor], *batch: Tensor) -> Tensor:
        state = {f"module.{k}": value for k, value in {**weights, **fixed, **buffers}.items()}
        found: Tensor = functional_call(whole, state, batch)
        return found

    def step(weights: dict[str, Tensor], each: int | None, at: int) -> tuple[Any, Tensor]:
        batch = _stacked([own[at] for own in batches]).to(device)
        fields = [one for one in (batch.inputs, batch.labels, batch.lengths) if one is not None]
        gradient = vmap(grad_and_value(mean_loss), in_dims=(each, 0, *[0] * len(fields)))
        return gradient(weights, buffers, *fields)

    if training.algorithm == "fedsgd":
        tensors, losses = step(weights, None, 0)
    else:
        start = {name: value[None] for name, value in weights.items()}
        tensors = {k: value.expand(number, *value.shape[1:]) for k, value in start.items()}
        moments: dict[str, Tensor] = {}
        losses = torch.zeros(number, device=device)
        steps = len(batches[0])
        for at in range(steps):
            gradient, lost = step(tensors, 0, at)
            losses = losses + lost / steps
            for name, slope in gradient.items():
                if proximal_mu:
                    slope = slope + proximal_mu * (tensors[name] - start[name])
                if training.weight_decay:
                    slope = slope + training.weight_decay * tensors[name]
                if training.momentum:
                    last = moments.get(name)
                    slope = slope if last is None else training.momentum * last + slope
                    moments[name] = slope
                tensors[name] = tensors[name] - training.lr * slope
    sent = _apart(tensors, number)
    states = _apart({name: value for name, value in buffers.items() if name in before}, number)
    each: list[float] = losses.tolist()  # each value read alone would wait for the GPU
    return [
        (update_of(training, own, one, state, reduction), lost)
        for own, one, state, lost in zip(batches, sent, states, each, strict=True)
    ]


def _apart(stacked: Mapping[str, Tensor], number: int) -> list[dict[str, Tensor]]:
    """The tensors of each client, on the CPU, of those that are stacked along a first dimension."""
    parts = [value.detach().cpu().unbind() for value in stacked.values()]
    each = zip(*parts, strict=True)
    return [dict(zip(stacked, one, strict=True)) for one in each] or [{} for _ in range(number)]
