"""The victim's model, as a white-box adversary receives it."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from fedsim.spec import Spec

Loss = Callable[..., Tensor]
"""loss(module, inputs, target, lengths=None, at="input") -> scalar tensor."""

KINKED = {"ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "Hardtanh", "Threshold"}
"""Activations whose second derivative is zero."""


class VictimModel:
    """A private copy of the model as the client had it: weights, mode and buffers.

    An adversary may change it freely.

    Attributes:
        module: The network.
        head: Name of the projection layer.
        trained: Names of the parameters that are trained and sent.
        words: Name of the word embeddings' parameter, or None.
        points: Points at which inputs can be fed, "input" among them.
        spec: What the task's examples look like; None without a task.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        head: str,
        loss: Loss,
        trained: Iterable[str] | None = None,
        words: str | None = None,
        points: tuple[str, ...] = ("input",),
        spec: Spec | None = None,
    ) -> None:
        self.module = module
        self.head = head
        self.trained = frozenset(
            trained if trained is not None else (name for name, _ in module.named_parameters())
        )
        self.words = words
        self.points = points
        self.spec = spec
        self._loss = loss

    @property
    def embedding(self) -> Tensor | None:
        """The word embeddings (V, d) that its layer gives, where the model has them."""
        if self.words is None:
            return None
        words = self.module.get_parameter(self.words).detach()
        layer = self.module.get_submodule(self.words.rpartition(".")[0])
        if type(layer) is nn.Embedding:
            return words
        with torch.no_grad():  # Gemma's layer scales its weight
            made: Tensor = layer(torch.arange(len(words), device=words.device))
        return made

    @property
    def drops(self) -> bool:
        """Whether it drops units at random in its present mode."""
        return any(part.training and _dropout_rate(part) > 0 for part in self.module.modules())

    @property
    def kinks(self) -> list[str]:
        """The kinds of its activations whose second derivative is zero, such as ReLU."""
        return sorted({type(part).__name__ for part in self.module.modules()} & KINKED)

    def loss(
        self, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
    ) -> Tensor:
        """Compute the training loss, a scalar, differentiable in inputs, target and weights.

        Args:
            inputs: (B, ...).
            target: Hard labels (B,) int64, soft ones (B, classes) that sum to one, or sequences,
                depending on the task.
            lengths: Lengths of the inputs, if the task has them.
            at: One of `points`.
        """
        if at not in self.points:
            raise ValueError(f"no point '{at}' to feed inputs at; there are {self.points}")
        return self._loss(self.module, inputs, target, lengths=lengths, at=at)

    def parameters(self) -> dict[str, nn.Parameter]:
        """The trained parameters by name, in the model's order."""
        return {k: p for k, p in self.module.named_parameters() if k in self.trained}

    def gradient(
        self,
        inputs: Tensor,
        target: Tensor,
        *,
        lengths: Any = None,
        at: str = "input",
        names: Iterable[str] | None = None,
        create_graph: bool = False,
    ) -> dict[str, Tensor]:
        """Compute the gradient of the loss.

        Args:
            inputs: As for `loss`.
            target: As for `loss`.
            lengths: As for `loss`.
            at: As for `loss`.
            names: Parameters; None: all that are trained.
            create_graph: Whether the gradient itself is differentiated.

        Returns:
            The gradient by parameter name.
        """
        parameters = self.parameters()
        if names is not None:
            parameters = {name: parameters[name] for name in names}
        loss = self.loss(inputs, target, lengths=lengths, at=at)
        grads = torch.autograd.grad(
            loss, list(parameters.values()), create_graph=create_graph, materialize_grads=True
        )
        return dict(zip(parameters, grads, strict=True))

    def to(self, device: torch.device | str) -> "VictimModel":
        """Move it to a device, in place, and return it."""
        self.module.to(device)
        return self

    def copy(self) -> "VictimModel":
        """Another private copy."""
        return copy.deepcopy(self)


def _dropout_rate(part: nn.Module) -> float:
    """Probability of a dropout layer, or of the dropout within recurrent and attention layers."""
    rate = getattr(part, "p" if isinstance(part, _DropoutNd) else "dropout", 0.0)
    return float(rate) if isinstance(rate, int | float) else 0.0


def load_arrays(module: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    """Copy named arrays into a module's parameters and buffers, in place; unknown names raise."""
    tied = dict(module.named_parameters(remove_duplicate=False))  # under each of its names
    targets = {**tied, **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in arrays.items():
            targets[name].copy_(value)
