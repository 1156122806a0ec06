"""The victim's model, as a white-box adversary gets it."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.spec import Spec

__all__ = ["Loss", "VictimModel"]

Loss = Callable[..., Tensor]
"""loss(module, inputs, target, lengths=None, at="input") -> scalar tensor."""


class VictimModel:
    """A private copy of the model as the client had it: weights, mode and buffers.

    module: the network; an adversary may do to it whatever it likes.
    head: name of the projection layer. trained: names of the parameters that are trained and
    sent. words: name of the parameter that holds the word embeddings, else None.
    points: where inputs can be fed, besides "input". spec: what the task's examples look like,
    where there is a task.
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
        """The word embeddings (V, d) as they stand, where the model has them."""
        return None if self.words is None else self.module.get_parameter(self.words).detach()

    @property
    def drops(self) -> bool:
        """Whether it drops units at random, in the mode in which it is."""
        return any(
            isinstance(part, nn.Dropout) and part.training and part.p > 0
            for part in self.module.modules()
        )

    def loss(
        self, inputs: Tensor, target: Tensor, *, lengths: Any = None, at: str = "input"
    ) -> Tensor:
        """The training loss, a scalar, differentiable in inputs, target and weights.

        target: hard labels (B,) int64, or soft ones (B, classes) that sum to one, or sequences
        where the task has them. at: one of `points`.
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
        """Gradient of the loss by parameter name; `create_graph` to differentiate through it."""
        parameters = self.parameters()
        if names is not None:
            parameters = {name: parameters[name] for name in names}
        loss = self.loss(inputs, target, lengths=lengths, at=at)
        grads = torch.autograd.grad(
            loss, list(parameters.values()), create_graph=create_graph, materialize_grads=True
        )
        return dict(zip(parameters, grads, strict=True))

    def to(self, device: torch.device | str) -> "VictimModel":
        """Moved to a device, in place; returns itself."""
        self.module.to(device)
        return self

    def copy(self) -> "VictimModel":
        """Another private copy."""
        return copy.deepcopy(self)


def load_arrays(module: nn.Module, arrays: Mapping[str, Tensor]) -> None:
    """Copy named arrays into a module's parameters and buffers, in place; unknown names raise."""
    targets = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    with torch.no_grad():
        for name, value in arrays.items():
            targets[name].copy_(value)
