"""What a federation trains: data, partition, model and loss, behind one contract."""

import contextlib
import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from fedsim.errors import PluginError
from fedsim.plugin import Plugin
from fedsim.records import Batch, Reconstruction, Reduction, Spec, Truth
from fedsim.seeds import isolated
from fedsim.victim import Loss, VictimModel, load_arrays

__all__ = ["Task", "evaluating"]


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[torch.device]:
    """A module in evaluation mode, without gradients; yields its device, puts its modes back."""
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad():
            module.eval()
            yield next((p.device for p in module.parameters()), torch.device("cpu"))
    finally:
        for part, training in modes.items():
            part.training = training


class Task(Plugin, ABC):
    """A data set cut among clients, a model and its loss.

    Everything is a pure function of the settings: the same task built in another process has the
    same partition, the same initial weights and the same batches.
    """

    spec_type: ClassVar[type[Spec]] = Spec
    """Class of `spec`: a scenario is refused if its adversaries attack other modalities."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {}
    """Settings of the models that `task.model` can name, by name."""

    sources: ClassVar[Mapping[str, str]] = {}
    """What `task.data` can be, and a sentence on each."""

    seed: int = Field(default=0, ge=0)
    """The run's seed."""

    clients: int = Field(default=1, ge=1)
    """Number of clients the data is cut among."""

    folder: Path | None = None
    """Where local data sets are looked up."""

    # What a task has worked out from its settings is neither copied (with other settings it would
    # be wrong) nor sent: whoever gets the settings can work it out again.

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
        """Whether both were made from the same settings, and so are the same task."""
        return type(self) is type(other) and self.model_dump() == other.model_dump()

    # --- data -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def spec(self) -> Spec:
        """What the examples look like."""

    @abstractmethod
    def batches(self, client: int, round: int, *, batch_size: int, steps: int) -> list[Batch]:
        """The client's training batches in a round: a pure function of (seed, client, round)."""

    @property
    def draws_uniformly(self) -> bool:
        """Whether any example of a client is as likely in a batch as any other, once at most.

        Privacy accounting for examples rests on it; a task that keeps to it says so.
        """
        return False

    @abstractmethod
    def num_examples(self, client: int) -> int:
        """How many training examples a client holds."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of the data, for the run's provenance."""

    def cautions(self) -> list[str]:
        """What a user should be told of the data before a run; may look at all of it.

        Raises `DataError` for what would fail in the middle of a run.
        """
        return []

    def truth(self, clients: Sequence[int], round: int, *, batch_size: int, steps: int) -> Truth:
        """The examples behind an update, all local steps and all clients together."""
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
        """Labelled examples disjoint from every client's, or None."""
        return None

    def prior(self) -> Any:
        """A prior over the inputs (a language model), or None."""
        return None

    # --- model ------------------------------------------------------------------------------

    @abstractmethod
    def build(self) -> nn.Module:
        """A new model, its weights drawn from torch's global generator."""

    @property
    @abstractmethod
    def head(self) -> str:
        """Name of the projection layer."""

    @property
    def words(self) -> str | None:
        """Name of the parameter that holds the word embeddings, where there are any."""
        return None

    @property
    @abstractmethod
    def loss(self) -> Loss:
        """The training loss, as a function.

        `loss(module, inputs, target, *, lengths=None, at="input")` returns a scalar: the mean
        training loss, twice differentiable in inputs and soft targets. A plain
        function that holds no reference to the task: adversaries get it with the model, and the
        task knows the truth.
        """

    @property
    def reduction(self) -> Reduction:
        """What the loss is a mean over."""
        return "example"

    @property
    def points(self) -> tuple[str, ...]:
        """Where the loss takes inputs."""
        return ("input",)

    @abstractmethod
    def evaluate(self, module: nn.Module, client: int | None = None) -> dict[str, float]:
        """Utility (loss, accuracy, ...) on the test split, or on one client's own examples.

        Holds `num_examples`, the number of examples that the means are over.
        """

    def module(self) -> nn.Module:
        """A new model with the run's initial weights: the same wherever it is built."""
        return copy.deepcopy(self._initial)

    @functools.cached_property
    def _initial(self) -> nn.Module:
        with isolated(self.seed, "model"):
            return self.build()

    def trained(self, module: nn.Module) -> frozenset[str]:
        """Names of the parameters that are trained and sent; all of them by default."""
        return frozenset(name for name, p in module.named_parameters() if p.requires_grad)

    def arrays(self, module: nn.Module) -> dict[str, Tensor]:
        """What travels: the trained parameters and the floating-point buffers, by name."""
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
        """The model with these arrays in training mode, as a client had it before the round."""
        if getattr(self.loss, "__self__", None) is not None:
            raise PluginError(
                f"the loss of task '{self.name}' is a bound method: adversaries get it with the "
                "model, and would reach the task and its truth through it. Make it a function"
            )
        module = copy.deepcopy(self._initial).train()
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

    # --- what a reader sees -----------------------------------------------------------------

    def guess(self, truth: Truth, rng: torch.Generator, *, informed: bool) -> Reconstruction:
        """What an adversary would claim that saw no update at all.

        Not informed: uniformly at random. Informed: from public data (label frequencies, the
        mean input). Of `truth` only the number and shapes of the examples may be used.
        """
        raise NotImplementedError

    def render(
        self,
        claimed: Reconstruction,
        truth: Truth,
    ) -> dict[str, bytes]:
        """Files for a reader, by name: originals beside reconstructions. None by default.

        A report shows what is named `reconstruction*`, beside what has `original` in its place in
        the same name; names that differ in their ending alone stand together. `about.txt` is what
        a reader should know of them all. Whatever it raises costs the files, and not the scores.
        """
        return {}
