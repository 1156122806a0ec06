"""Classifiers that a scenario can name, with one architecture in each file."""

from collections.abc import Mapping
from typing import Any

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB
from fedsim.plugin import Model, table, validated
from fedsim.references import is_reference
from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.models.cnn import CNN, LeNetSigmoid
from fedsim.tasks.models.convnet import ConvNet
from fedsim.tasks.models.factory import FACTORY, Classifier
from fedsim.tasks.models.hub import Transformers
from fedsim.tasks.models.lenet import LeNet
from fedsim.tasks.models.mlp import MLP
from fedsim.tasks.models.resnet import ResNet

__all__ = ["FACTORY", "MODELS", "Architecture", "as_architecture", "as_model"]

MODELS: dict[str, type[Architecture]] = {
    "cnn": CNN,
    "convnet": ConvNet,
    "lenet": LeNet,
    "lenet-sigmoid": LeNetSigmoid,
    "mlp": MLP,
    "resnet20": ResNet,
    "resnet56": ResNet,
    "transformers": Transformers,
}
"""Built-in architectures by name; a user's own function is named by a reference instead."""


def as_architecture(value: Any) -> Architecture:
    """Validate the architecture that a scenario's `model` asks for; see `as_model`."""
    if isinstance(value, Architecture):
        return value
    known: dict[str, type[Architecture]] = {**MODELS, f"{HUB}NAME": Transformers}
    known[FACTORY] = Classifier
    return as_model(value, known, '{name = "resnet20", activation = "sigmoid"}')


def as_model(value: Any, known: Mapping[str, type[Model]], example: str) -> Model:
    """Validate the model that a scenario's `model` asks for.

    Args:
        value: A name ("cnn", "hub:microsoft/resnet-50", "module:function"), or a table with a name
            and settings ({name = "resnet20", activation = "sigmoid"}).
        known: Classes of settings by name, "hub:NAME" and "module:function" among them if the task
            takes such models.
        example: A valid table, for messages.

    Raises:
        DataError: The name is unknown.
        ScenarioError: A setting is unknown or has the wrong type.
    """
    settings = table(value, "task.model", example=example)
    name = settings["name"]
    kind = FACTORY if is_reference(name) else f"{HUB}NAME" if name.startswith(HUB) else name
    if kind not in known:
        raise DataError(f"task.model: no model '{name}'. {did_you_mean(name, known)}")
    return validated(known[kind], settings, "task.model")
