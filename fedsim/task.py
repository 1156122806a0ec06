"""The base class of tasks: data, its partition among clients, a model and its loss."""

import contextlib
import copy
import functools
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from fedsim.errors import PluginError
from fedsim.parts import parts
from fedsim.plugin import Plugin
from fedsim.records import Batch, Reconstruction, Reduction, Spec, Truth
from fedsim.seeds import isolated
from fedsim.victim import Loss, VictimModel, load_arrays

RUN_FIELDS = frozenset({"seed", "clients", "folder", "batching"})
"""Fields of a task that the scenario sets from its other tables, and `[task]` cannot."""


def named_folder(given: str | Path | None = None) -> Path | None:
    """The folder of local data sets: the one that is given, or what `FEDSIM_DATA` names.

    Args:
        given: A folder, or nothing.

    Returns:
        Its absolute path, which may not exist; None if neither names one.
    """
    named = given or os.environ.get("FEDSIM_DATA")
    return Path(named).expanduser().resolve() if named else None


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[torch.device]:
    """Put a module into evaluation mode without gradients; its modes are restored afterwards.

    Yields:
        The module's device.
    """
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad():
            module.eval()
            yield next((p.device for p in module.parameters()), torch.device("cpu"))
    finally:
        for part, training in modes.items():
            part.training = training


class Task(Plugin, ABC):
    """Data divided among clients, a model and its training loss.

    Everything is a pure function of the settings: the same task built in another process has the
    same partition, the same initial weights and the same batches.
    """

    spec_type: ClassVar[type[Spec]] = Spec
    """Class of `spec`: a scenario is refused if its adversaries attack other modalities."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """The models that `task.model` can name, and the settings of each."""

    sources: ClassVar[Mapping[str, str]] = {}
    """The data sets that `task.data` can name, with a sentence on each."""

    seed: int = Field(default=0, ge=0)
    """Seed of the run."""

    clients: int = Field(default=1, ge=1)
    """Number of clients that the data is divided among."""

    folder: Path | None = Field(default_factory=named_folder)
    """Folder in which local data sets are looked up; by default what `FEDSIM_DATA` names."""

    @classmethod
    def local_data(cls, folder: Path) -> list[str]:
        """The names of the data sets in a folder that `data` can name, for `fedsim list data`.

        Args:
            folder: What `--data` or `FEDSIM_DATA` names.
        """
        return []

    # What a task has computed from its settings is neither copied, because it may not fit changed
    # settings, nor sent, because the receiver can compute it from the settings.

    def __copy__(self) -> Self:
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()
        kept = {k: v for k, v in self.__dict__.items() if k in type(self).model_fields}
        return {**state, "__dict__": kept}

    def same_as(self, other: "Task") -> bool:
        """Whether another task has the same class and settings, and so the same data and model."""
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """The modality of the examples: their shapes and labels, which adversaries may know."""

    @abstractmethod
    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """Compose a client's training batches in a round.

        The result must be a pure function of (seed, client, round), and the first batches the same
        for any number of steps. A task with a field `batching` gets `training.batching` in it: with
        "epochs", the number of steps decides where a round begins.

        Args:
            client: The client, from 0.
            round: The round, from 1.
            batch_size: Examples in a batch; fewer if the client has fewer.
            steps: The number of batches.
        """

    @property
    def draws_uniformly(self) -> bool:
        """Whether every example of a client is equally likely in a batch, and at most once in it.

        Privacy accounting per example relies on this property, if batches are drawn and do not
        follow epochs (`training.batching`).
        """
        return False

    @abstractmethod
    def num_examples(self, client: int) -> int:
        """The number of training examples that a client holds."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the data, for the provenance of the run."""

    def cautions(self) -> list[str]:
        """What a user should know about the data before a run, one sentence each.

        It may read all of the data.

        Raises:
            DataError: Something would fail in the middle of the run.
        """
        return []

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The examples behind an update, those of all local steps and all clients together.

        Args:
            clients: The clients whose updates are combined.
            round: The round, from 1.
            batch_size: Examples in a batch.
            steps: The number of local steps.
        """
        batches = [
            batch
            for client in clients
            for batch in self.batches(client, round, batch_size=batch_size, steps=steps)
        ]
        return Truth(
            inputs=[example for batch in batches for example in batch.inputs],
            labels=torch.cat([batch.labels for batch in batches]),
        )

    def auxiliary(self) -> Batch | None:
        """Labelled examples that no client holds; None if there are none.

        Their tensors must be new at every call.
        """
        return None

    def prior(self) -> Any:
        """Data that a prior over the inputs is estimated from, such as public texts, or None."""
        return None

    @abstractmethod
    def build(self) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator."""

    @property
    @abstractmethod
    def head(self) -> str:
        """The name of the projection layer."""

    @property
    def words(self) -> str | None:
        """The name of the parameter that holds the word embeddings; None if there are none."""
        return None

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The training loss, as a function.

        It is called as `loss(module, inputs, target, *, lengths=None, at="input")` and returns a
        scalar, the mean training loss. It must be twice differentiable in inputs and soft targets.
        It must be a plain function that holds no reference to the task, because adversaries get it
        with the model, and the task knows the truth.
        """

    @property
    def reduction(self) -> Reduction:
        """What the loss is a mean over."""
        return "example"

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the model at which the loss takes inputs."""
        return ("input",)

    @abstractmethod
    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Compute the utility of a model, such as its loss and accuracy.

        Args:
            module: The model.
            client: The client on whose examples it is evaluated; None for the test split.

        Returns:
            Values by name, which are numbers. `num_examples`, which clients must give, is the
            number of examples that the means are over. Names of a run's own fields, such as
            "round" and "point", are refused.
        """

    def module(self) -> nn.Module:
        """A new model with the run's initial weights, which are the same in every process.

        Raises:
            PluginError: The model cannot be copied.
        """
        try:
            return copy.deepcopy(self._initial)
        except RuntimeError as error:
            why = str(error).partition(". ")[0]
            raise PluginError(
                f"the model of task '{self.name}' cannot be copied: {why}. That is so of the "
                "deprecated torch.nn.utils.weight_norm; use torch.nn.utils.parametrizations"
            ) from error

    @functools.cached_property
    def _initial(self) -> nn.Module:
        with isolated(self.seed, "model"):
            return self.build()

    def trained(self, module: nn.Module) -> frozenset[str]:
        """The names of the parameters that are trained and sent; by default all."""
        return frozenset(name for name, p in parts(module).parameters.items() if p.requires_grad)

    def arrays(self, module: nn.Module) -> dict[str, Tensor]:
        """The tensors that are sent: trained parameters and floating-point buffers, by name."""
        trained = self.trained(module)
        found = {k: p.detach() for k, p in module.named_parameters() if k in trained}
        persistent = module.state_dict().keys()
        found |= {
            name: buffer.detach()
            for name, buffer in module.named_buffers()
            if buffer.is_floating_point() and name in persistent
        }
        return found

    def victim(self, arrays: Mapping[str, Tensor]) -> VictimModel:
        """Copy the model as a client had it before the round: these tensors, in training mode.

        Args:
            arrays: Trained parameters and buffers by name, as `arrays` returns them.

        Raises:
            PluginError: The task's loss is a bound method, through which adversaries could reach
                the truth.
        """
        if getattr(self.loss, "__self__", None) is not None:
            raise PluginError(
                f"the loss of task '{self.name}' is a bound method: adversaries get it with the "
                "model, and would reach the task and its truth through it. Make it a function"
            )
        module = self.module().train()
        load_arrays(module, arrays)
        return VictimModel(
            module,
            head=self.head,
            loss=self.loss,
            trained=self.trained(module),
            words=self.words,
            points=self.points,
            spec=self.spec,
        )

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """Draw what an adversary without an update would claim, for the baselines of metrics.

        Args:
            truth: The victim's examples; only their number and shapes may be used.
            rng: Source of randomness.
            informed: Use public data, such as label frequencies and the mean input. Otherwise
                claims are uniform at random.

        Raises:
            NotImplementedError: The task has no such guess.
        """
        raise NotImplementedError

    def render(self, claimed: Reconstruction, truth: Truth) -> dict[str, bytes]:
        """Files that show originals and reconstructions to a reader, by name; by default none.

        A report shows files named `reconstruction*` beside those with `original` at the same place
        in the name; a text without such a file shows both. Files whose names differ in their suffix
        alone are shown together. `about.txt` holds what a reader should know of all of them. An
        exception costs the files, and not the scores.
        """
        return {}
