"""The base class of classifier architectures, whose settings build a model, and a model's head."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedsim.described import Described
from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import brief
from fedsim.task import evaluating


class Architecture(Described, ABC):
    """Settings of one kind of classifier.

    Every model takes inputs of shape (B, channels, height, width), float32 in [0, 1], or of any
    shape if `images_only` is false, and returns logits of shape (B, classes).
    """

    images_only: ClassVar[bool] = True
    """Whether inputs must be images."""

    name: str
    """Name of the architecture in a scenario."""

    head: str | None = None
    """Name of the final linear layer, which is found automatically unless there are several."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator.

        Args:
            shape: Shape of an input; for images channels, height and width.
            classes: Number of classes.

        Raises:
            DataError: The architecture cannot take such inputs.
        """

    def find_head(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> str:
        """Find the name of the final linear layer.

        Args:
            module: A model that `build` returned.
            shape: Shape of an input.
            classes: Number of classes.

        Raises:
            DataError: As for `head_behind`.
        """
        example = torch.linspace(0, 1, prod(shape)).reshape(1, *shape)
        return head_behind(
            module,
            lambda: module(example),
            (1, classes),
            label=f"model '{self.name}'",
            takes=f"inputs of shape {shape}; set task.size for images, or choose another model",
            named=self.head,
        )


def head_behind(
    module: nn.Module,
    logits: Callable[[], Any],
    shape: tuple[int, ...],
    *,
    label: str,
    takes: str,
    named: str | None,
) -> str:
    """Find the head as the linear layer whose output is the model's logits.

    Args:
        module: The model, which is in evaluation mode meanwhile.
        logits: Computes the logits of one example.
        shape: Expected shape of the logits, classes last.
        label: The model's name in error messages.
        takes: Description of the example, for error messages.
        named: Layer that the user names as the head; None if not set.

    Returns:
        The name of the layer.

    Raises:
        DataError: The model cannot take the example, the logits have another shape, no layer or
            several return them, `named` is not a linear layer, or the head is called repeatedly.
    """
    outputs: dict[str, list[Any]] = {}
    linear = {k: m for k, m in module.named_modules() if isinstance(m, nn.Linear)}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.setdefault(name, []).append(output)

    hooks = [part.register_forward_hook(keep(name)) for name, part in linear.items()]
    try:
        with evaluating(module):
            found = logits()
    except Exception as error:  # whatever a user's own forward raises
        raise DataError(f"{label} cannot take {takes}: {brief(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(found, Tensor) or found.shape != shape:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DataError(f"{label} returns {shown} for one example, expected {shape}")
    if named is not None:
        if named not in linear:
            raise DataError(
                f"task.model.head: '{named}' is no linear layer of {label}. "
                f"{did_you_mean(named, linear)}"
            )
        heads = [named]
    else:
        heads = [name for name, returned in outputs.items() if returned[-1] is found]
    if len(heads) == 1:
        if (calls := len(outputs.get(heads[0], ()))) > 1:
            raise DataError(
                f"{label} calls its head '{heads[0]}' {calls} times for one example, and "
                "adversaries read the head's gradient as that of one call. Call it once"
            )
        return heads[0]
    likely = [name for name, layer in linear.items() if layer.out_features == shape[-1]]
    raise DataError(
        f"which layer of {label} is the head? None of them outputs the logits unchanged. "
        f"Name it with task.model.head; linear layers with {shape[-1]} outputs: "
        f"{', '.join(likely) or 'none'}."
    )
