"""LeNet with ReLUs and max pooling (LeCun et al., 1998; as in LLG's table 3)."""

from collections import OrderedDict

from torch import nn

from fedsim.tasks.models.architecture import Architecture

SMALLEST = 32
"""Height and width of LeNet-5's input: LeCun et al. pad MNIST's 28 x 28 images to it."""


class LeNet(Architecture):
    """LeNet-5 with ReLUs and max pooling.

    The layers are a 5x5 convolution of 6 channels, pooling, a 5x5 convolution of 16 channels,
    pooling, and fully connected layers of 120, 84 and `classes` units. Images smaller than 32 x 32
    are padded to this size with zeros.
    """

    name: str = "lenet"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        channels, *sides = shape
        vertical, horizontal = (max(0, SMALLEST - side) for side in sides)
        top, left = vertical // 2, horizontal // 2
        height, width = (((max(SMALLEST, side) - 4) // 2 - 4) // 2 for side in sides)
        return nn.Sequential(
            OrderedDict(
                padding=nn.ZeroPad2d((left, horizontal - left, top, vertical - top)),
                features=nn.Sequential(
                    nn.Conv2d(channels, 6, 5),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                    nn.Conv2d(6, 16, 5),
                    nn.ReLU(),
                    nn.MaxPool2d(2),
                ),
                flatten=nn.Flatten(),
                hidden=nn.Sequential(
                    nn.Linear(16 * height * width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()
                ),
                head=nn.Linear(84, classes),
            )
        )
