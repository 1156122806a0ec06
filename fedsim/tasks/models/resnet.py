"""Residual networks for small images (He et al., 2016, section 4.2), 6n + 2 layers."""

from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional

from fedsim.tasks.models.architecture import Architecture

WIDTHS = (16, 32, 64)
"""Number of channels of each stage."""


class _Block(nn.Module):
    """Two 3x3 convolutions with an identity shortcut; added channels of the shortcut are zero."""

    def __init__(self, before: int, after: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.stride = stride
        self.extra = after - before
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.activation = activation()

    def forward(self, inputs: Tensor) -> Tensor:
        kept = inputs[:, :, :: self.stride, :: self.stride]
        kept = functional.pad(kept, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        hidden = self.activation(self.norm1(self.conv1(inputs)))
        return cast(Tensor, self.activation(self.norm2(self.conv2(hidden)) + kept))


class _ResNet(nn.Module):
    def __init__(
        self, channels: int, classes: int, *, blocks: int, activation: type[nn.Module], stride: int
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, WIDTHS[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        self.activation = activation()
        stages = []
        for before, after in zip((WIDTHS[0], *WIDTHS), WIDTHS, strict=False):
            first = _Block(before, after, 1 if before == after else stride, activation)
            rest = [_Block(after, after, 1, activation) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(first, *rest))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(WIDTHS[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.stages(self.activation(self.norm(self.conv(inputs))))
        return cast(Tensor, self.head(hidden.mean(dim=(2, 3))))


class ResNet(Architecture):
    """ResNet20 or ResNet56 for small images, with batch normalisation.

    With sigmoids and without strides it is twice differentiable, as in DLG (section 4.1).
    """

    name: Literal["resnet20", "resnet56"] = "resnet20"
    activation: Literal["relu", "sigmoid"] = "relu"
    """Activation function; sigmoid is twice differentiable everywhere."""

    strides: bool = True
    """Whether height and width are halved between stages, as in the paper."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build the network for images of any height and width."""
        depth = int(self.name.removeprefix("resnet"))
        return _ResNet(
            shape[0],
            classes,
            blocks=(depth - 2) // 6,
            activation=nn.Sigmoid if self.activation == "sigmoid" else nn.ReLU,
            stride=2 if self.strides else 1,
        )
