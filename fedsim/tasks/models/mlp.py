"""A multilayer perceptron, whose first linear layer receives the flattened input."""

from collections import OrderedDict
from math import prod
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedsim.tasks.models.architecture import Architecture


class MLP(Architecture):
    """Fully connected layers on the flattened input, with torch's default initialisation.

    Layers are named `hidden.0`, `hidden.2`, ... and `head`.
    """

    images_only = False

    name: str = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(256,), min_length=1)
    """Number of units of each hidden layer, starting at the input."""

    activation: Literal["relu", "sigmoid"] = "relu"
    """Activation function; sigmoid is twice differentiable everywhere."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for inputs of any shape."""
        activation = nn.Sigmoid if self.activation == "sigmoid" else nn.ReLU
        layers: list[nn.Module] = []
        for inputs, units in zip((prod(shape), *self.hidden), self.hidden, strict=False):
            layers += [nn.Linear(inputs, units), activation()]
        head = nn.Linear(self.hidden[-1], classes)
        return nn.Sequential(
            OrderedDict(flatten=nn.Flatten(), hidden=nn.Sequential(*layers), head=head)
        )
