"""What a speech recogniser is: settings that build a model, its loss, and how to read it."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedsim.victim import Loss

__all__ = ["END", "PADDING", "Recogniser"]

END = 0
"""The label that ends every sequence, and that the decoder is given before the first."""

PADDING = -100
"""What fills up the shorter targets of a batch; no loss is taken there."""


class Recogniser(BaseModel, ABC):
    """Settings of one kind of speech recogniser.

    units: what its labels stand for. head: name of the projection layer. points: where inputs can
    be fed. loss: `loss(module, inputs, target, *, lengths=None, at="input")`, a scalar, the mean
    over the batch's tokens; a plain function that holds no reference to anything.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    units: ClassVar[Literal["wordpieces", "characters"]]
    head: ClassVar[str]
    points: ClassVar[tuple[str, ...]] = ("input",)
    loss: ClassVar[Loss]

    name: str = Field(description="name under which a scenario asks for it")

    @abstractmethod
    def build(self, features: int, vocabulary: int) -> nn.Module:
        """A new model for frames of `features` values and `vocabulary` labels, label 0 included.

        Weights are drawn from torch's global generator.
        """

    @abstractmethod
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """What the model hears: the likeliest label at every step, one (L,) int64 an utterance.

        inputs (B, T, features) float32, padded with 0; lengths (B,) int64, frames. At most
        `longest` labels; label 0 is left out.
        """
