"""What a defense is: two hooks on the client, `prepare` (local training) and `protect` (update)."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedsim.errors import did_you_mean
from fedsim.plugin import Plugin
from fedsim.records import Batch, Update

__all__ = [
    "ClientState",
    "Defense",
    "Effect",
    "Exposure",
    "MeanGradient",
    "Training",
    "contradictions",
    "overlap",
]

ClientState = MutableMapping[str, Tensor]
"""One defense's tensors on one client, kept across rounds (error feedback lives here)."""

Effect = Literal["values", "zeros", "format"]
"""What a defense does to the coordinates of an update."""


@dataclass(frozen=True, slots=True)
class MeanGradient:
    """The plain gradient of the mean loss on a batch; what clients use unless a defense changes it.

    loss(module, batch): the mean loss, a scalar. names: the parameters that are trained.
    """

    loss: Callable[[nn.Module, Batch], Tensor]
    names: frozenset[str]

    def __call__(self, module: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
        """Gradient by parameter name, and the loss."""
        parameters = {name: p for name, p in module.named_parameters() if name in self.names}
        loss = self.loss(module, batch)
        grads = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        return dict(zip(parameters, grads, strict=True)), float(loss.detach())


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """A client's local training, before it runs.

    module: the model, loaded and in training mode. batches: one a local step; none while a
    scenario is only checked. loss(module, batch): the mean training loss, a scalar that can be
    differentiated. gradient(module, batch): the mean gradient of that loss, by parameter name, and
    the loss; DP-SGD replaces it. rng: seeded by (seed, round, client).
    """

    module: nn.Module
    batches: tuple[Batch, ...]
    loss: Callable[[nn.Module, Batch], Tensor]
    gradient: Callable[[nn.Module, Batch], tuple[dict[str, Tensor], float]]
    algorithm: Literal["fedsgd", "fedavg"]
    lr: float
    momentum: float
    weight_decay: float
    rng: torch.Generator

    def replace(self, **changes: Any) -> "Training":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Exposure:
    """How often data has been used so far, for whoever counts a privacy budget.

    All numbers are those of the most exposed client that runs the defense. rounds: rounds trained.
    participations: rounds that any one client took part in. clients, clients_per_round: the
    federation's. examples: training examples of the client that holds fewest. batch_size: examples
    a local step, as cut to what that client holds. local_steps: steps a round.
    summed: clients whose noise adds up in the smallest sum that the server sees: 1 where it
    sees every update, where they weigh differently, or where a later defense takes noise away.
    released: the same for the global model, 0 where nothing can be said (clients that take part by
    name, too). trained, buffers: names of the arrays that travel. uniform: whether batches are
    drawn without regard to labels.
    """

    rounds: int
    participations: int
    clients: int
    clients_per_round: int
    examples: int
    batch_size: int
    local_steps: int
    summed: int = 1
    released: int = 0
    trained: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    uniform: bool = True


class Defense(Plugin):
    """Something a client does so that its update tells less. Override one hook or both.

    Defenses are applied in listed order. The framework hands `protect` only the tensors of the
    `layers` it is for, on the `clients` that run it.
    """

    clients: Literal["all"] | tuple[Annotated[int, Field(ge=0)], ...] = "all"
    """ "all", or the numbers of the clients that run it."""

    layers: Literal["all"] | tuple[str, ...] = "all"
    """ "all", or names of the layers (or parameters) it is for, such as ["head"]."""

    @model_validator(mode="after")
    def _has_layers_to_choose(self) -> Self:
        if self.layers != "all" and type(self).protect is Defense.protect:
            raise ValueError(
                "layers chooses parts of an update, and this defense changes the training "
                'itself; leave it "all"'
            )
        for key in ("layers", "clients"):
            if getattr(self, key) == ():
                raise ValueError(
                    f'{key} = [] leaves nothing to protect; expected a list of them, or "all"'
                )
        return self

    def prepare(self, training: Training) -> Training:
        """Change how the client trains. The default changes nothing.

        Also called once, without batches, when a scenario is checked: raise `ScenarioError` for a
        model that cannot be trained so.
        """
        return training

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Change what the client sends. The default changes nothing.

        update: kind "gradient" or "delta", never "weights" (the caller turns weights into a delta
        and back, so noise and signs mean the same under FedSGD and FedAvg). Return a new record
        and leave this one's tensors as they are; tensors passed through untouched are sent
        bit-identical. rng: a CPU generator for (seed, round, client, this defense). state: what
        this client kept from earlier rounds; change it in place.
        """
        return update

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """The privacy budget used so far, such as {"epsilon": 3.1, "delta": 1e-5}."""
        return {}

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """What a user should know before a run of this length, though it can be run."""
        return ()

    @property
    def effect(self) -> Effect:
        """What `protect` does to coordinates: new "values", only "zeros", or a coarse "format".

        Two of which the later would undo the earlier are refused.
        """
        return "values"

    @property
    def remembers(self) -> bool:
        """Whether it keeps something on the client from round to round."""
        return False

    def guards(self, client: int) -> bool:
        """Whether a client runs it."""
        return self.clients == "all" or client in self.clients

    def covers(self, name: str) -> bool:
        """Whether it is for a parameter: named itself, or in a layer that is."""
        return self.layers == "all" or any(
            name == layer or name.startswith(f"{layer}.") for layer in self.layers
        )

    def unknown_layers(self, names: Iterable[str]) -> str:
        """A complaint about layers that are not among these parameters; empty where all are."""
        names = list(names)
        for layer in () if self.layers == "all" else self.layers:
            if not any(name == layer or name.startswith(f"{layer}.") for name in names):
                known = {*names, *(name.rpartition(".")[0] for name in names if "." in name)}
                return f"layers: the model has no '{layer}'. {did_you_mean(layer, known)}"
        return ""


def contradictions(defenses: Sequence[Defense]) -> list[str]:
    """Complaints about defenses of which a later one would undo an earlier one.

    What fixes the form in which values travel (signs, eight bits) comes last; only zeros may
    follow, since every format has a zero.
    """
    found = []
    for later, second in enumerate(defenses):
        for earlier, first in enumerate(defenses[:later]):
            if not overlap(first, second):
                continue
            pair = f"defenses.{later} ({second.name}) after defenses.{earlier} ({first.name})"
            sends = type(second).protect is not Defense.protect
            if type(first).prepare is not Defense.prepare and type(first) is type(second):
                found.append(
                    f"{pair}: the second takes the place of the first on the same clients. Keep "
                    "one of them"
                )
            elif first.effect == "format" and sends and second.effect != "zeros":
                fix = (
                    "keep one of them"
                    if second.effect == "format"
                    else f"list {second.name} before {first.name}"
                )
                found.append(
                    f"{pair}: {first.name} fixes the form in which values travel, and "
                    f"{second.name} would put other values in their place. To mend it, {fix}"
                )
    return found


def overlap(first: Defense, second: Defense) -> bool:
    """Whether two defenses work on the same tensors of the same client."""
    clients = (
        first.clients == "all"
        or second.clients == "all"
        or set(first.clients) & set(second.clients)
    )
    layers = (
        first.layers == "all"
        or second.layers == "all"
        or any(second.covers(layer) for layer in first.layers)
        or any(first.covers(layer) for layer in second.layers)
    )
    return bool(clients) and layers
