"""The sigmoid network of LLG and DLG, which initialise its biases in different ways.

LLG: Wainakh et al., "User-Level Label Leakage", section 5. DLG: Zhu et al., "Deep Leakage from
Gradients", section 4.1.
"""

from collections import OrderedDict

from pydantic import Field
from torch import nn

from fedsim.tasks.models.architecture import Architecture

BOUND = 0.5
"""Parameters are drawn from the uniform distribution on [-BOUND, BOUND]."""


class CNN(Architecture):
    """LLG's sigmoid network: weights from U(-0.5, 0.5), biases as torch initialises them.

    The layers are three 5x5 convolutions (strides 2, 2, 1) with sigmoids, and a linear head.
    """

    name: str = "cnn"

    channels: int = Field(12, ge=1)
    """Number of channels of each convolution; 12 in both papers."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        colours, height, width = shape
        wide = self.channels
        layers: list[nn.Module] = []
        for inputs, stride in ((colours, 2), (wide, 2), (wide, 1)):
            layers += [nn.Conv2d(inputs, wide, 5, stride=stride, padding=2), nn.Sigmoid()]
        head = nn.Linear(wide * -(-height // 4) * -(-width // 4), classes)
        module = nn.Sequential(
            OrderedDict(features=nn.Sequential(*layers), flatten=nn.Flatten(), head=head)
        )
        for name, parameter in module.named_parameters():
            if self._draws(name):
                nn.init.uniform_(parameter, -BOUND, BOUND)
        return module

    def _draws(self, parameter: str) -> bool:
        """Whether a parameter is drawn from U(-0.5, 0.5)."""
        return parameter.endswith("weight")


class LeNetSigmoid(CNN):
    """DLG's twice differentiable network: LLG's with weights and biases from U(-0.5, 0.5)."""

    name: str = "lenet-sigmoid"

    def _draws(self, parameter: str) -> bool:
        return True
