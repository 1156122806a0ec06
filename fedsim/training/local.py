"""Training on a client: the local steps of FedSGD or FedAvg, then the chain of defenses."""

import functools
from collections.abc import Iterable, Mapping, MutableMapping, Sequence

import torch
from torch import Tensor, nn

from fedsim.defense import ClientState, Defense, MeanGradient, Training
from fedsim.errors import PluginError
from fedsim.parts import parts, training_mode
from fedsim.records import Batch, Reduction, Update
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun
from fedsim.seeds import isolated, torch_generator
from fedsim.task import Task
from fedsim.victim import Loss

STATE_KEY = "fedsim.defense"


def client_update(
    built: BuiltRun,
    module: nn.Module,
    before: Mapping[str, Tensor],
    where: tuple[int, int],
    states: MutableMapping[str, ClientState],
    training: Training,
    *,
    proximal_mu: float = 0.0,
) -> tuple[Update, float]:
    """A client's local training and defenses in a round.

    Batches, dropout and the defenses' noise depend on (seed, client, round) alone.

    Args:
        built: The run.
        module: The model, with the weights `before`; it is trained in place.
        before: The arrays that the server sent, by name.
        where: Round and client.
        states: The client's own state of each defense, by `STATE_KEY`.POSITION; changed in place.
        training: The client's `client_training`.
        proximal_mu: The weight of FedProx's term, which the strategy sends.

    Returns:
        The defended update and the mean training loss.
    """
    task, place = built.task, (built.scenario.seed, *where)
    with isolated(built.scenario.seed, "client", *where):
        training_mode(module)
        for defense in built.defenses:
            if defense.guards(where[1]):
                training = _prepared(defense, training)
        update, loss = train_locally(
            training,
            before,
            trained=task.trained(module),
            reduction=task.reduction,
            proximal_mu=proximal_mu,
        )
        return protect(update, before, built.defenses, place, states), loss


def client_training(
    built: BuiltRun,
    module: nn.Module,
    where: tuple[int, int],
    batches: Sequence[Batch],
    *,
    lr: float | None = None,
    device: torch.device | str | None = None,
) -> Training:
    """A client's local training in a round, before its defenses take part in it.

    Args:
        built: The run.
        module: The model.
        where: Round and client.
        batches: The client's batches in the round.
        lr: The learning rate of the round, by default that of the scenario.
        device: Where its batches are, by default where the model is.
    """
    rng = torch_generator(built.scenario.seed, "training", *where)
    return local_training(
        built.scenario, built.task, module, batches, rng, (), lr=lr, device=device
    )


def local_training(
    scenario: Scenario,
    task: Task,
    module: nn.Module,
    batches: Sequence[Batch],
    rng: torch.Generator,
    defenses: Sequence[Defense],
    *,
    lr: float | None = None,
    device: torch.device | str | None = None,
) -> Training:
    """A client's local training as the scenario states it, prepared by its defenses.

    Args:
        scenario: The scenario, for its `training` table.
        task: The task, for its loss and the names of trained parameters.
        module: The model.
        batches: One batch a local step.
        rng: The generator of the training's random numbers.
        defenses: The defenses that run on this client.
        lr: The learning rate of the round, that of the scenario by default.
        device: Where its batches are, by default where the model is.
    """
    settings = scenario.training
    device = device or next(iter(parts(module).parameters.values())).device
    loss = functools.partial(batch_loss, task.loss)
    training = Training(
        module=module,
        batches=tuple(batch.to(device) for batch in batches),
        loss=loss,
        gradient=MeanGradient(loss, task.trained(module)),
        algorithm=settings.algorithm,
        lr=settings.lr if lr is None else lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        rng=rng,
        optimizer=settings.optimizer,
    )
    for defense in defenses:
        training = _prepared(defense, training)
    return training


def _prepared(defense: Defense, training: Training) -> Training:
    found = defense.prepare(training)
    _expect(defense, "prepare returned", found, Training)
    return found


def _expect(defense: Defense, what: str, found: object, kind: type) -> None:
    if isinstance(found, Tensor) and found.layout != torch.strided:
        raise PluginError(f"{defense.name}: {what} sparse, expected a dense tensor: to_dense()")
    if not isinstance(found, kind):
        own = type(found).__name__
        raise PluginError(f"{defense.name}: {what} {own}, expected a value of type {kind.__name__}")


def batch_loss(loss: Loss, module: nn.Module, batch: Batch) -> Tensor:
    """A task's mean loss on a batch, a scalar."""
    return loss(module, batch.inputs, batch.labels, lengths=batch.lengths)


def train_locally(
    training: Training,
    before: Mapping[str, Tensor],
    *,
    trained: frozenset[str],
    reduction: Reduction = "example",
    proximal_mu: float = 0.0,
) -> tuple[Update, float]:
    """Take the gradient of the first batch (FedSGD), or a step for each batch (FedAvg).

    Args:
        training: The model, batches, algorithm and settings of the optimizer, whose state is new.
        before: The weights that the server sent, by parameter name.
        trained: Names of the trained parameters.
        reduction: What the loss is a mean over.
        proximal_mu: The weight of FedProx's term mu/2 ||w - w_0||^2 (Li et al., 2020), which the
            strategy sends.

    Returns:
        The update, a gradient or new weights, and the mean training loss.
    """
    module = training.module
    if training.algorithm == "fedsgd":
        tensors, loss = training.gradient(module, training.batches[0])
        losses = [loss]
    else:
        named = parts(module).parameters
        parameters = {name: p for name, p in named.items() if name in trained}
        optimizer = _optimizer(training, parameters.values())
        losses = []
        for batch in training.batches:
            gradient, loss = training.gradient(module, batch)
            losses.append(loss)
            for name, parameter in parameters.items():
                parameter.grad = gradient[name]
                if proximal_mu:
                    parameter.grad = parameter.grad + proximal_mu * (
                        parameter.detach() - before[name].to(parameter.device)
                    )
            optimizer.step()
        tensors = {name: p.detach().clone() for name, p in parameters.items()}
        optimizer.zero_grad()
    buffers = {}
    if others := [name for name in before if name not in trained]:
        present = parts(module).buffers
        buffers = {name: present[name].clone() for name in others if name in present}
    update = update_of(training, training.batches, tensors, buffers, reduction)
    return update, sum(losses) / len(losses)


def gradients_in_turn(
    training: Training,
    batches: Sequence[Sequence[Batch]],
    *,
    loss: Loss,
    trained: frozenset[str],
    reduction: Reduction = "example",
) -> list[tuple[Update, float] | None]:
    """Do for several clients under FedSGD what `train_locally` does for one, with the same bits.

    Nothing but the gradients is computed between two clients: a gradient empties the processor's
    caches of the code and data that all else needs, which then takes several times as long.

    Args:
        training: The training of each client, but for its batches. It is the plain one, without
            defenses, and does not change the model (`fedsim.parts.is_pure`).
        batches: The batches of each client, of which FedSGD takes the first.
        loss: The task's loss.
        trained: Names of the trained parameters.
        reduction: What the loss is a mean over.

    Returns:
        The update and the training loss of each client; None if its training fails.
    """
    module = training.module
    weights = {name: p for name, p in parts(module).parameters.items() if name in trained}
    parameters = list(weights.values())
    found: list[tuple[Sequence[Tensor], Tensor] | None] = []
    for batch, *_ in batches:
        try:
            mean = batch_loss(loss, module, batch)
            gradient = torch.autograd.grad(mean, parameters, materialize_grads=True)
            found.append((gradient, mean.detach()))
        except Exception:
            found.append(None)
    made: list[tuple[Update, float] | None] = []
    for own, each in zip(batches, found, strict=True):
        if each is None:
            made.append(None)
            continue
        tensors = dict(zip(weights, each[0], strict=True))
        made.append((update_of(training, own, tensors, {}, reduction), float(each[1])))
    return made


def update_of(
    training: Training,
    batches: Sequence[Batch],
    tensors: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    reduction: Reduction,
) -> Update:
    """What a client sends after its local training, before any defense, on the CPU.

    Args:
        training: The training, whose own batches do not matter.
        batches: The client's batches.
        tensors: The gradient (FedSGD) or the new weights (FedAvg), by parameter name.
        buffers: The buffers that are sent.
        reduction: What the loss is a mean over.
    """
    return Update(
        tensors={name: value.cpu() for name, value in tensors.items()},
        kind="gradient" if training.algorithm == "fedsgd" else "weights",
        buffers={name: value.cpu() for name, value in buffers.items()},
        optimizer=training.optimizer,
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        steps=len(batches),
        num_examples=sum(map(len, batches)),
        reduction=reduction,
    )


def _optimizer(training: Training, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer of a client's local steps, without state of earlier rounds."""
    lr, decay = training.lr, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=decay)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=training.momentum, weight_decay=decay)


def protect(
    update: Update,
    before: Mapping[str, Tensor],
    defenses: Sequence[Defense],
    where: tuple[int, int, int],
    states: MutableMapping[str, ClientState],
) -> Update:
    """Apply the defenses in listed order to a gradient, or to the delta behind new weights.

    Each defense gets the tensors of its own layers, if it runs on this client. A tensor that no
    defense touched stays bit-identical.

    Args:
        update: The update of local training.
        before: The weights that the server sent, by parameter name.
        defenses: The defenses, including those that do not run on this client.
        where: (seed, round, client), from which each defense's generator is derived.
        states: The client's own state of each defense, by `STATE_KEY`.POSITION; changed in place.

    Returns:
        The update to send, of the same kind.

    Raises:
        PluginError: A defense names a layer that the update does not have, or returns no update.
    """
    if not any(defense.guards(where[2]) for defense in defenses):
        return update
    delta = update
    if update.kind == "weights":
        changes = {name: value - before[name] for name, value in update.tensors.items()}
        delta = update.replace(tensors=changes, kind="delta")
    protected = delta
    seed, round, client = where
    for position, defense in enumerate(defenses):
        if not defense.guards(client):
            continue
        if complaint := defense.unknown_layers(protected.tensors):
            raise PluginError(f"{defense.name}: {complaint}")
        state = states.setdefault(f"{STATE_KEY}.{position}", {})
        rng = torch_generator(seed, f"defense.{position}.{defense.name}", round, client)
        chosen = {k: value for k, value in protected.tensors.items() if defense.covers(k)}
        rest = {k: value for k, value in protected.tensors.items() if k not in chosen}
        changed = defense.protect(protected.replace(tensors=chosen), rng, state)
        _expect(defense, "protect returned", changed, Update)
        for name, value in changed.tensors.items():
            _expect(defense, f"tensors[{name!r}] is", value, Tensor)
        for name, value in state.items():
            _expect(defense, f"state[{name!r}] is", value, Tensor)
        protected = changed.replace(tensors={**rest, **changed.tensors})
        if not state:
            del states[f"{STATE_KEY}.{position}"]
    # In the order in which they came: some strategies of Flower go by it and not by names.
    tensors = {name: protected.tensors[name] for name in delta.tensors if name in protected.tensors}
    tensors |= protected.tensors
    if update.kind != "weights":
        return protected.replace(tensors=tensors)
    tensors = {
        name: update.tensors.get(name, value)
        if value is delta.tensors.get(name)
        else before[name] + value
        if name in before and value.shape == before[name].shape
        else value
        for name, value in tensors.items()
    }
    return protected.replace(tensors=tensors, kind="weights")
