"""What a speech recogniser is: settings that build a model, its loss, and how to read it."""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from fedsim.records import Reduction
from fedsim.victim import Loss

__all__ = ["PADDING", "Recogniser"]

PADDING = -100
"""What fills up the shorter targets of a batch; no loss is taken there."""


class Recogniser(BaseModel, ABC):
    """Settings of one kind of speech recogniser.

    units: what its labels stand for: word pieces, whose sequences end with label 0, or characters,
    whose sequences do not hold it (it is CTC's blank). head: name of the projection layer. points:
    where inputs can be fed. loss: `loss(module, inputs, target, *, lengths=None, at="input")`, a
    scalar; a plain function that holds no reference to anything. reduction: what it is a mean over.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    units: ClassVar[Literal["wordpieces", "characters"]]
    head: ClassVar[str]
    points: ClassVar[tuple[str, ...]] = ("input",)
    loss: ClassVar[Loss]
    reduction: ClassVar[Reduction]

    name: str
    """Name under which a scenario asks for it."""

    @abstractmethod
    def build(self, features: int, vocabulary: int) -> nn.Module:
        """A new model for frames of `features` values and `vocabulary` labels, label 0 included.

        Weights are drawn from torch's global generator.
        """

    @abstractmethod
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor | None, longest: int
    ) -> list[Tensor]:
        """What the model hears: one (L,) int64 an utterance, label 0 left out.

        inputs (B, T, features) float32, padded with 0; lengths (B,) int64, frames. At most
        `longest` labels.
        """
