"""Image classifiers that a scenario can name, one architecture a file."""

from typing import Any

import torch
from torch import Tensor, nn

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB
from fedsim.plugin import table, validated
from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.models.cnn import CNN
from fedsim.tasks.models.hub import Transformers
from fedsim.tasks.models.lenet import LeNet
from fedsim.tasks.models.lenet_sigmoid import LeNetSigmoid
from fedsim.tasks.models.mlp import MLP
from fedsim.tasks.models.resnet import ResNet

__all__ = ["MODELS", "Architecture", "as_architecture", "find_head"]

MODELS: dict[str, type[Architecture]] = {
    "cnn": CNN,
    "lenet": LeNet,
    "lenet-sigmoid": LeNetSigmoid,
    "mlp": MLP,
    "resnet20": ResNet,
    "resnet56": ResNet,
    "transformers": Transformers,
}


def as_architecture(value: Any) -> Architecture:
    """Validate the architecture that a scenario's `model` asks for.

    Args:
        value: A name ("cnn", "hub:microsoft/resnet-50"), or a table with a name and settings ({name
            = "resnet20", activation = "sigmoid"}).

    Raises:
        DataError: The name is unknown.
        ScenarioError: A setting is unknown or has the wrong type.
    """
    if isinstance(value, Architecture):
        return value
    settings = table(value, "task.model", example='{name = "resnet20", activation = "sigmoid"}')
    name = settings["name"]
    if name.startswith(HUB):
        return validated(Transformers, settings, "task.model")
    if name not in MODELS:
        raise DataError(
            f"task.model: no model '{name}'. {did_you_mean(name, [*MODELS, HUB + 'NAME'])}"
        )
    return validated(MODELS[name], settings, "task.model")


def find_head(
    module: nn.Module,
    shape: tuple[int, int, int],
    classes: int,
    *,
    label: str,
    named: str | None = None,
) -> str:
    """Find the linear layer whose output is the logits.

    Args:
        module: The model.
        shape: Channels, height and width of an input.
        classes: The number of labels.
        label: The model's name in error messages.
        named: The layer that the user names as the head, if any.

    Returns:
        The name of the layer.

    Raises:
        DataError: The model cannot take such inputs, no layer or several return the logits, or
            `named` is not a linear layer.
    """
    outputs: dict[str, Tensor] = {}
    linear = {k: m for k, m in module.named_modules() if isinstance(m, nn.Linear)}

    def keep(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.__setitem__(name, output)

    modes = {part: part.training for part in module.modules()}
    hooks = [part.register_forward_hook(keep(name)) for name, part in linear.items()]
    example = torch.linspace(0, 1, shape[0] * shape[1] * shape[2]).reshape(1, *shape)
    try:
        with torch.no_grad():
            logits = module.eval()(example)
    except (RuntimeError, ValueError, IndexError) as error:
        raise DataError(
            f"model '{label}' cannot take inputs of shape {shape}: {error} "
            "Resize them with task.size, or choose another model."
        ) from error
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training
    if logits.shape != (1, classes):
        raise DataError(
            f"model '{label}' returns {tuple(logits.shape)} for one example, expected "
            f"{(1, classes)}"
        )
    if named is not None:
        if named not in linear:
            raise DataError(
                f"task.model.head: '{named}' is no linear layer of model '{label}'. "
                f"{did_you_mean(named, linear)}"
            )
        return named
    heads = [name for name, output in outputs.items() if output is logits]
    if len(heads) == 1:
        return heads[0]
    likely = [name for name, layer in linear.items() if layer.out_features == classes]
    raise DataError(
        f"which layer of model '{label}' is the head? None returns the logits as they are. "
        f"Name it with task.model.head; linear layers with {classes} outputs: "
        f"{', '.join(likely) or 'none'}."
    )
