"""What an architecture is: settings that build a classifier."""

from abc import ABC, abstractmethod

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

__all__ = ["Architecture"]


class Architecture(BaseModel, ABC):
    """Settings of one kind of image classifier.

    Every model takes inputs (B, channels, height, width) float32 in [0, 1] and returns logits
    (B, classes).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="name under which a scenario asks for it")
    head: str | None = Field(
        default=None,
        description="name of the final linear layer; found by itself unless there are several",
    )

    @abstractmethod
    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A new model for inputs of `shape` (channels, height, width).

        Weights are drawn from torch's global generator. Raises `DataError` where the
        architecture cannot take such inputs.
        """
