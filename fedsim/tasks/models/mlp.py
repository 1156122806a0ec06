"""A multilayer perceptron, whose first linear layer receives the flattened input."""

from math import prod
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedsim.tasks.models.architecture import Architecture


class _Perceptron(nn.Module):
    def __init__(
        self, inputs: int, hidden: tuple[int, ...], classes: int, activation: type[nn.Module]
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [nn.Linear(inputs, width), activation()]
            inputs = width
        self.hidden = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.hidden(torch.flatten(inputs, 1)))
        return logits


class MLP(Architecture):
    """Fully connected layers on the flattened input, with torch's default initialisation.

    Layers are named `hidden.0`, `hidden.2`, ... and `head`.
    """

    images_only: ClassVar[bool] = False

    name: str = "mlp"
    hidden: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(256,), min_length=1)
    """Number of units of each hidden layer, starting at the input."""

    activation: Literal["relu", "sigmoid"] = "relu"
    """Activation function; sigmoid is twice differentiable everywhere."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for inputs of any shape."""
        activation = nn.Sigmoid if self.activation == "sigmoid" else nn.ReLU
        return _Perceptron(prod(shape), self.hidden, classes, activation)
