"""The base class of classifier architectures, whose settings build a model."""

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from torch import nn

from fedsim.tasks.models.heads import find_head


class Architecture(BaseModel, ABC):
    """Settings of one kind of classifier.

    Every model takes inputs of shape (B, channels, height, width), float32 in [0, 1], or of any
    shape if `images_only` is false, and returns logits of shape (B, classes).
    """

    images_only: ClassVar[bool] = True
    """Whether inputs must be images."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name of the architecture in a scenario."""

    head: str | None = None
    """Name of the final linear layer, which is found automatically unless there are several."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator.

        Args:
            shape: Shape of an input; for images channels, height and width.
            classes: Number of classes.

        Raises:
            DataError: The architecture cannot take such inputs.
        """

    def find_head(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> str:
        """Find the name of the final linear layer.

        Args:
            module: A model that `build` returned.
            shape: Shape of an input.
            classes: Number of classes.

        Raises:
            DataError: There is no such layer, or several could be it.
        """
        return find_head(module, shape, classes, label=self.name, named=self.head)
