"""The head of a model: the linear layer whose output is the logits."""

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedsim.errors import DataError, did_you_mean
from fedsim.task import evaluating


def find_head(
    module: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    *,
    label: str,
    named: str | None = None,
) -> str:
    """Find the head of a classifier.

    Args:
        module: The model.
        shape: Shape of an input.
        classes: Number of classes.
        label: The model's name in error messages.
        named: Layer that the user names as the head; None if not set.

    Returns:
        The name of the layer.

    Raises:
        DataError: The model cannot take such inputs, no layer or several return the logits, or
            `named` is not a linear layer.
    """
    example = torch.linspace(0, 1, prod(shape)).reshape(1, *shape)
    try:
        return head_behind(
            module, lambda: module(example), (1, classes), label=f"model '{label}'", named=named
        )
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise DataError(
            f"model '{label}' cannot take inputs of shape {shape}: {error} "
            "Resize them with task.size, or choose another model."
        ) from error


def head_behind(
    module: nn.Module,
    logits: Callable[[], Any],
    shape: tuple[int, ...],
    *,
    label: str,
    named: str | None = None,
) -> str:
    """Find the head as the linear layer whose output is the model's logits.

    Args:
        module: The model, which is in evaluation mode meanwhile.
        logits: Computes the logits of one example.
        shape: Expected shape of the logits, classes last.
        label: The model's name in error messages.
        named: Layer that the user names as the head; None if not set.

    Returns:
        The name of the layer.

    Raises:
        DataError: The logits have another shape, no layer or several return them, or `named` is
            not a linear layer.
    """
    outputs: dict[str, Tensor] = {}
    linear = {k: m for k, m in module.named_modules() if isinstance(m, nn.Linear)}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.__setitem__(name, output)

    hooks = [part.register_forward_hook(keep(name)) for name, part in linear.items()]
    try:
        with evaluating(module):
            found = logits()
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(found, Tensor) or found.shape != shape:
        returned = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise DataError(f"{label} returns {returned} for one example, expected {shape}")
    if named is not None:
        if named not in linear:
            raise DataError(
                f"task.model.head: '{named}' is no linear layer of {label}. "
                f"{did_you_mean(named, linear)}"
            )
        return named
    heads = [name for name, output in outputs.items() if output is found]
    if len(heads) == 1:
        return heads[0]
    likely = [name for name, layer in linear.items() if layer.out_features == shape[-1]]
    raise DataError(
        f"which layer of {label} is the head? None returns the logits as they are. "
        f"Name it with task.model.head; linear layers with {shape[-1]} outputs: "
        f"{', '.join(likely) or 'none'}."
    )
