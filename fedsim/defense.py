"""The base class of defenses, with two hooks on the client: `prepare` and `protect`."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, get_args

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from fedsim.errors import PluginError, did_you_mean
from fedsim.libraries import asking
from fedsim.parts import parts
from fedsim.plugin import Plugin
from fedsim.records import Batch, Update

ClientState = MutableMapping[str, Tensor]
"""Tensors that one defense keeps on one client across rounds, such as for error feedback."""

Effect = Literal["values", "zeros", "format"]
"""Effect of a defense on the coordinates of an update."""


@dataclass(frozen=True, slots=True)
class MeanGradient:
    """The gradient of the mean loss on a batch, which clients use unless a defense replaces it.

    Attributes:
        loss: Maps a module and a batch to the mean loss, a scalar.
        names: Names of the trained parameters.
    """

    loss: Callable[[nn.Module, Batch], Tensor]
    names: frozenset[str]

    def __call__(self, module: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], float]:
        """Compute the gradient by parameter name, and the loss."""
        named = parts(module).parameters
        parameters = {name: p for name, p in named.items() if name in self.names}
        loss = self.loss(module, batch)
        grads = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        return dict(zip(parameters, grads, strict=True)), float(loss.detach())


@dataclass(frozen=True, slots=True, eq=False)
class Training:
    """A client's local training before it runs.

    Attributes:
        module: The model, loaded and in training mode.
        batches: One batch for each local step; none while a scenario is only checked.
        loss: Maps a module and a batch to the mean training loss, a differentiable scalar.
        gradient: Maps a module and a batch to the mean gradient of that loss by parameter name, and
            the loss; DP-SGD replaces it.
        algorithm: "fedsgd" or "fedavg".
        lr: Learning rate of the local steps.
        momentum: Momentum of the local steps of SGD.
        weight_decay: Weight decay of the local steps.
        rng: Seeded by (seed, round, client).
        optimizer: Optimizer of the local steps: "sgd", "adam" or "adamw".
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
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"

    def replace(self, **changes: Any) -> "Training":
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Exposure:
    """How often data were used so far, for the computation of a privacy budget.

    All numbers are those of the most exposed client that runs the defense.

    Attributes:
        rounds: Number of rounds trained.
        participations: Number of rounds in which a client took part.
        clients: Number of clients of the federation.
        clients_per_round: Number of clients sampled in a round.
        examples: Training examples of the client with the fewest.
        batch_size: Examples of a local step, at most those of that client.
        local_steps: Local steps of a round, the most of any client that runs the defense.
        summed: Number of clients whose noise adds up in the smallest sum that the server sees. It
            is 1 if the server sees every update, if weights differ, or if a later defense removes
            noise.
        released: The same for the global model; 0 if it is unknown, also if clients take part by
            name.
        trained: Names of the trained parameters that are sent.
        buffers: Names of the buffers that are sent.
        uniform: Whether batches are drawn uniformly, regardless of labels and of earlier batches.
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
    """Base class of defenses, which clients run to make their updates less informative.

    A subclass overrides `prepare`, `protect` or both. Defenses are applied in listed order.
    `protect` receives only the tensors of its `layers`, on its `clients`.
    """

    clients: Literal["all"] | tuple[Annotated[int, Field(ge=0)], ...] = "all"
    """Numbers of the clients that run the defense, or "all"."""

    layers: Literal["all"] | tuple[str, ...] = "all"
    """Names of the layers or parameters that are protected, such as ["head"], or "all"."""

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

    @classmethod
    def mistake(cls) -> str:
        """Neither method is written, or under another name."""
        if cls.prepare is Defense.prepare and cls.protect is Defense.protect:
            return "neither prepare nor protect is written: this defense does nothing"
        return ""

    def prepare(self, training: Training) -> Training:
        """Change the client's training; by default unchanged.

        The method is also called once without batches when a scenario is checked.

        Args:
            training: The training before the change.

        Raises:
            ScenarioError: The model cannot be trained with this defense.
        """
        return training

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        """Change the update that the client sends; by default unchanged.

        Args:
            update: Of kind "gradient" or "delta", never "weights": the caller converts weights to a
                delta and back, so that noise and signs mean the same under FedSGD and FedAvg. Its
                tensors must not be changed in place.
            rng: A CPU generator for (seed, round, client, defense).
            state: Tensors that this client kept from earlier rounds; to be changed in place.

        Returns:
            A new record. Tensors that are passed on unchanged are sent bit-identically.
        """
        return update

    def spent(self, exposure: Exposure) -> Mapping[str, float]:
        """The privacy budget spent so far, such as {"epsilon": 3.1, "delta": 1e-5}.

        Names that utility.csv has for something else, such as "loss", are refused.
        """
        return {}

    def cautions(self, exposure: Exposure) -> Sequence[str]:
        """Warnings about a run of this length, which can run nevertheless."""
        return ()

    @property
    def effect(self) -> Effect:
        """Effect of `protect` on coordinates: new "values", only "zeros", or a coarse "format".

        Scenarios in which a defense would undo an earlier one are refused.
        """
        return "values"

    @property
    def remembers(self) -> bool:
        """Whether the defense keeps state on the client across rounds."""
        return False

    def guards(self, client: int) -> bool:
        """Whether a client runs the defense."""
        return self.clients == "all" or client in self.clients

    def covers(self, name: str) -> bool:
        """Whether a parameter is protected, by its own name or that of its layer."""
        return self.layers == "all" or any(
            name == layer or name.startswith(f"{layer}.") for layer in self.layers
        )

    def unknown_layers(self, names: Iterable[str]) -> str:
        """An error message for layers that the model does not have; "" if it has all."""
        names = list(names)
        for layer in () if self.layers == "all" else self.layers:
            if not any(name == layer or name.startswith(f"{layer}.") for name in names):
                known = {*names, *(name.rpartition(".")[0] for name in names if "." in name)}
                return f"layers: the model has no '{layer}'. {did_you_mean(layer, known)}"
        return ""


def check_declared(defense: Defense) -> None:
    """Check the properties of a defense.

    Raises:
        PluginError: One of them raises an error, or `effect` is something else than an `Effect`.
    """
    with asking(defense.name, "remembers"):
        _ = defense.remembers
    with asking(defense.name, "effect"):
        effect = defense.effect
    if effect not in get_args(Effect):
        known = ", ".join(map(repr, get_args(Effect)))
        raise PluginError(f"{defense.name}: effect is {effect!r:.40}, expected one of {known}")


def contradictions(defenses: Sequence[Defense]) -> list[str]:
    """Error messages for defenses that would undo an earlier one.

    A defense that sends values in a coarse format (signs, eight bits) has to be the last one,
    except that zeros may follow, since every format has a zero.
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
                    f"{pair}: two of a kind change the training of the same clients. Keep one of "
                    "them"
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
    clients = "all" in (first.clients, second.clients) or {*first.clients} & {*second.clients}
    layers = (
        "all" in (first.layers, second.layers)
        or any(map(second.covers, first.layers))
        or any(map(first.covers, second.layers))
    )
    return bool(clients) and layers
