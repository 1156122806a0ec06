"""The base class of classifiers: settings that build a model."""

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel, ConfigDict
from torch import nn

from fedsim.tasks.models.heads import find_head

__all__ = ["Architecture"]


class Architecture(BaseModel, ABC):
    """Settings of one kind of classifier.

    Every model takes inputs of shape (B, channels, height, width), float32 in [0, 1], or of any
    shape if `images_only` is false, and returns logits of shape (B, classes).
    """

    images_only: ClassVar[bool] = True

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name of the architecture in a scenario."""

    head: str | None = None
    """Name of the final linear layer, which is found automatically unless there are several."""

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model, its weights drawn from torch's global generator.

        Args:
            shape: Shape of an input: for images channels, height and width.
            classes: The number of labels.

        Raises:
            DataError: The architecture cannot take such inputs.
        """

    def find_head(self, module: nn.Module, shape: tuple[int, ...], classes: int) -> str:
        """The name of the final linear layer.

        Args:
            module: A model that `build` returned.
            shape: Shape of an input.
            classes: The number of labels.

        Raises:
            DataError: There is none, or it cannot be told which one it is.
        """
        return find_head(module, shape, classes, label=self.name, named=self.head)
