"""Classifiers that a scenario can name, with one architecture in each file."""

from typing import Any

from fedsim.errors import DataError, did_you_mean
from fedsim.libraries import HUB
from fedsim.plugin import table, validated
from fedsim.references import is_reference
from fedsim.tasks.models.architecture import Architecture
from fedsim.tasks.models.cnn import CNN, LeNetSigmoid
from fedsim.tasks.models.factory import FACTORY, Classifier
from fedsim.tasks.models.hub import Transformers
from fedsim.tasks.models.lenet import LeNet
from fedsim.tasks.models.mlp import MLP
from fedsim.tasks.models.resnet import ResNet

__all__ = ["FACTORY", "MODELS", "Architecture", "as_architecture"]

MODELS: dict[str, type[Architecture]] = {
    "cnn": CNN,
    "lenet": LeNet,
    "lenet-sigmoid": LeNetSigmoid,
    "mlp": MLP,
    "resnet20": ResNet,
    "resnet56": ResNet,
    "transformers": Transformers,
}
"""Built-in architectures by name; a user's own function is named by a reference instead."""


def as_architecture(value: Any) -> Architecture:
    """Validate the architecture that a scenario's `model` asks for.

    Args:
        value: A name ("cnn", "hub:microsoft/resnet-50", "module:function"), or a table with a name
            and settings ({name = "resnet20", activation = "sigmoid"}).

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
    if is_reference(name):
        return validated(Classifier, settings, "task.model")
    if name not in MODELS:
        raise DataError(
            f"task.model: no model '{name}'. {did_you_mean(name, [*MODELS, HUB + 'NAME', FACTORY])}"
        )
    return validated(MODELS[name], settings, "task.model")
