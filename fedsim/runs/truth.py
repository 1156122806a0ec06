"""What one client of another Flower project trained on, read from a file that the client wrote.

`fedsim.watch` writes these files to the truth store (`fedsim.runs.truth_store`). Since they come
from clients, counts and settings beyond any honest client's are refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedsim.errors import RunFolderError
from fedsim.records import LARGEST, MOST, Truth

Count = Annotated[int, Field(ge=0, le=MOST)]
Setting = Annotated[float, Field(ge=0, lt=LARGEST, allow_inf_nan=False)]


class Origin(BaseModel):
    """Whose training a file is about; a server refuses a file of another reply.

    Attributes:
        round: The round, from 1; 0 if the server did not send it.
        node: Flower's id of the client's node.
        received: Digest of the arrays that the client received.
        proximal_mu: Weight of FedProx's proximal term that the server sent; 0 without one.
    """

    model_config = ConfigDict(frozen=True)

    round: Count = 0
    node: int = 0
    received: str = ""
    proximal_mu: Setting = 0.0


SHARED = ("momentum", "weight_decay")
"""Settings that an update has once, beside the learning rate."""


class Group(BaseModel):
    """A group of parameters of an optimizer.

    Attributes:
        settings: The optimizer's arguments for it at the first step.
        rates: Its learning rate at each step.
        changes: Other arguments that a scheduler changed before a step, by the step's place.
        trained: Names of its parameters; empty if they are not known.
    """

    model_config = ConfigDict(frozen=True)

    settings: dict[str, Any] = {}
    rates: tuple[Setting, ...] = ()
    changes: dict[int, dict[str, Any]] = {}
    trained: tuple[str, ...] = ()

    @property
    def shared(self) -> tuple[Any, ...]:
        """Its learning rate, momentum and weight decay at every step."""
        changes = {
            step: {key: value for key, value in new.items() if key in SHARED}
            for step, new in self.changes.items()
        }
        first = [self.settings.get(key) for key in SHARED]
        return self.rates, first, {step: new for step, new in changes.items() if new}


class Seen(Origin, Group):
    """What hooks saw of one client's training in one round, apart from its examples.

    It has the settings of the optimizer's first group of parameters; others are in `more`.

    Attributes:
        steps: Number of steps of its optimizers; 0 if none was used, as in FedSGD.
        optimizer: Class of the optimizer in lower case, such as "sgd"; "unknown" if there was none,
            "several" if there were two.
        lr: Mean learning rate of the steps; None without an optimizer, or if groups of parameters
            differ in it, in momentum or in weight decay. `momentum` and `weight_decay` are those of
            the first step, 0 if groups differ.
        training: Whether the model was in training mode.
        frozen: Names of its layers that were not, such as batch normalisation in fine-tuning.
        device: Where the model computed, such as "cpu" or "cuda".
        sizes: Number of examples of each batch, in the order of training.
        same: The place of an earlier batch with equal inputs, by place.
        partial: Whether some inputs are missing, because they were too large or not seen.
        kind: Name of the optimizer's class.
        ends: For each step the number of batches so far.
        groups: Number of its groups of parameters.
        more: Its groups beyond the first; fewer than `groups` says if they changed between steps.
        optimizers: Number of optimizers.
        warm: Whether it had state before the first step.
        wrapper: Class of an optimizer around it, such as "Lookahead"; "" without one.
        others: Names of further inputs that the model received, such as "token_type_ids"; they are
            not recorded.
        sent: Whether the update that the server received is what the training function returned:
            "as returned", "defended" by `fedsim.defend`, or "changed" by something else.
    """

    steps: Count = 0
    optimizer: str = "unknown"
    lr: Setting | None = None
    momentum: Annotated[Setting, Field(lt=1)] = 0.0
    weight_decay: Setting = 0.0
    training: bool = True
    frozen: tuple[str, ...] = ()
    device: str = "cpu"
    sizes: tuple[Count, ...] = ()
    same: dict[int, int] = {}
    partial: bool = False
    kind: str = ""
    ends: tuple[Count, ...] = ()
    groups: Count = 0
    more: tuple[Group, ...] = ()
    optimizers: Count = 0
    warm: bool = False
    wrapper: str = ""
    others: tuple[str, ...] = ()
    sent: Literal["as returned", "defended", "changed"] = "as returned"

    def set_mode(self, module: nn.Module) -> None:
        """Put a model and its layers in the mode in which the client trained them, in place."""
        module.train(self.training)
        for name, layer in module.named_modules():
            if name in self.frozen:
                layer.training = False

    @property
    def uniform(self) -> bool:
        """Whether all groups of parameters have the same rates, momentum and weight decay."""
        alike = all(one.shared == self.shared for one in self.more)
        return alike and self.groups <= 1 + len(self.more)


class TruthFile:
    """One client's batches of one round. Tensors are read when they are asked for, and not kept.

    Args:
        path: The file.

    Attributes:
        seen: What else was seen of the training.

    Raises:
        RunFolderError: There is no such file, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                self.seen = Seen.model_validate_json((file.metadata() or {})["fedsim"])
                self._names = frozenset(file.keys())
        except (OSError, SafetensorError, KeyError, ValidationError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """The file's tensors whose names begin with `prefix`, by name.

        Raises:
            RunFolderError: The file is not there any more, or broken.
        """
        try:
            with safe_open(self.path, framework="pt") as file:
                names = [name for name in self._names if name.startswith(prefix)]
                return {name: file.get_tensor(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}") from error

    def _each(self, kind: str) -> Iterator[Tensor]:
        found = self.tensors(f"{kind}.")
        for place in range(len(self.seen.sizes)):
            place = self.seen.same.get(place, place) if kind == "inputs" else place
            if f"{kind}.{place}" in found:
                yield found[f"{kind}.{place}"]

    @property
    def inputs(self) -> list[Tensor]:
        """The inputs of each batch, (B, ...), as the model received them; fewer if partial."""
        return [*self._each("inputs")]

    @property
    def first(self) -> Tensor | None:
        """The inputs of the first batch, (B, ...); None if they are missing or empty."""
        found = self.tensors("inputs.0").get("inputs.0")
        return found if found is not None and found.dim() and len(found) else None

    @property
    def labels(self) -> list[Tensor]:
        """The labels of each batch, (B,) int64 if they are of classes; fewer if partial."""
        return [one.flatten(1).squeeze(1) if one.dim() > 1 else one for one in self._each("labels")]

    @property
    def rng(self) -> list[Tensor]:
        """The state of torch's generator before the model received each batch, uint8."""
        found, states = self.tensors("rng."), list[Tensor]()
        for place in range(len(self.seen.sizes)):
            states.append(found[f"rng.{place}"] if f"rng.{place}" in found else states[-1])
        return states

    @property
    def after(self) -> dict[str, Tensor]:
        """The arrays that the training function replied with, before any defense, by name."""
        return {k.removeprefix("after."): v for k, v in self.tensors("after.").items()}

    def truth(self, classes: int | None = None) -> Truth:
        """The examples, those of all batches together.

        Args:
            classes: The number of classes; labels beyond are none. None: any integer is a label.

        Returns:
            Inputs and labels, either of them only if it is complete.
        """
        inputs, labels = self.inputs, self.labels
        number, sizes = len(self.seen.sizes), list(self.seen.sizes)
        whole = bool(inputs) and [len(one) for one in inputs] == sizes
        classed = number > 0 and [tuple(one.shape) for one in labels] == [(one,) for one in sizes]
        bag = torch.cat(labels) if classed else torch.empty(0, dtype=torch.int64)
        if classes is not None and len(bag):
            classed = classed and int(bag.min()) >= 0 and int(bag.max()) < classes
        return Truth(
            inputs=[one for batch in inputs for one in batch] if whole else None,
            labels=bag if classed else None,
        )
