"""A plain convolutional network with batch normalisation, as Inverting Gradients attacks one."""

from collections import OrderedDict
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from fedsim.tasks.models.architecture import Architecture


class ConvNet(Architecture):
    """3x3 convolutions with batch normalisation, and a linear head on all features.

    The first convolution keeps height and width, each further one halves them. The style is that
    of the "ConvNet" in Geiping et al., Inverting Gradients (2020), which is wider and deeper.
    """

    name: str = "convnet"
    widths: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(32, 64, 64), min_length=1)
    """Number of channels of each convolution."""

    activation: Literal["relu", "sigmoid"] = "relu"
    """Activation function; sigmoid is twice differentiable everywhere."""

    batch_norm: bool = True
    """Whether each convolution is followed by batch normalisation."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        channels, height, width = shape
        activation = nn.Sigmoid if self.activation == "sigmoid" else nn.ReLU
        layers: list[nn.Module] = []
        for number, (inputs, outputs) in enumerate(
            zip((channels, *self.widths), self.widths, strict=False)
        ):
            layers.append(nn.Conv2d(inputs, outputs, 3, stride=2 if number else 1, padding=1))
            layers += [nn.BatchNorm2d(outputs)] if self.batch_norm else []
            layers.append(activation())
        halved = 2 ** (len(self.widths) - 1)
        features = self.widths[-1] * -(-height // halved) * -(-width // halved)
        head = nn.Linear(features, classes)
        return nn.Sequential(
            OrderedDict(features=nn.Sequential(*layers), flatten=nn.Flatten(), head=head)
        )
