"""LeNet with ReLUs and max pooling (LeCun et al., 1998; as in LLG's table 3)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.tasks.models.architecture import Architecture

SMALLEST = 32
"""Height and width of LeNet-5's input: LeCun et al. pad MNIST's 28 x 28 images to it."""


class _LeNet(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.padding = [max(0, SMALLEST - side) for side in (height, width)]
        left = [
            ((side + extra - 4) // 2 - 4) // 2
            for side, extra in zip((height, width), self.padding, strict=True)
        ]
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.hidden = nn.Sequential(
            nn.Linear(16 * left[0] * left[1], 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
        )
        self.head = nn.Linear(84, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        vertical, horizontal = self.padding
        padded = functional.pad(
            inputs,
            (
                horizontal // 2,
                horizontal - horizontal // 2,
                vertical // 2,
                vertical - vertical // 2,
            ),
        )
        logits: Tensor = self.head(self.hidden(torch.flatten(self.features(padded), 1)))
        return logits


class LeNet(Architecture):
    """LeNet-5 with ReLUs and max pooling.

    The layers are a 5x5 convolution of 6 channels, pooling, a 5x5 convolution of 16 channels,
    pooling, and fully connected layers of 120, 84 and `classes` units. Images smaller than 32 x 32
    are padded to this size with zeros.
    """

    name: str = "lenet"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        return _LeNet(shape, classes)
