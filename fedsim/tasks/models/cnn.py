"""LLG's small convolutional network (Wainakh et al., "User-Level Label Leakage", section 5)."""

import torch
from torch import Tensor, nn

from fedsim.tasks.models.architecture import Architecture

BOUND = 0.5
"""Parameters are drawn from the uniform distribution on [-BOUND, BOUND]."""


class SigmoidConvolutions(nn.Module):
    """Three 5x5 convolutions of 12 channels (strides 2, 2, 1) with sigmoids, and a linear head.

    Args:
        shape: Channels, height and width of an input.
        classes: Number of classes.
        uniform_biases: Whether biases are drawn from U(-0.5, 0.5) like the weights, instead of by
            torch's default.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, *, uniform_biases: bool) -> None:
        super().__init__()
        channels, height, width = shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=1, padding=2),
            nn.Sigmoid(),
        )
        self.head = nn.Linear(12 * -(-height // 4) * -(-width // 4), classes)
        for name, parameter in self.named_parameters():
            if uniform_biases or name.endswith("weight"):
                nn.init.uniform_(parameter, -BOUND, BOUND)

    def forward(self, inputs: Tensor) -> Tensor:
        """Compute logits (B, classes) of images (B, channels, height, width)."""
        logits: Tensor = self.head(torch.flatten(self.features(inputs), 1))
        return logits


class CNN(Architecture):
    """LLG's sigmoid network: weights from U(-0.5, 0.5), biases as torch initialises them."""

    name: str = "cnn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        return SigmoidConvolutions(shape, classes, uniform_biases=False)
