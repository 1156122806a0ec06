"""The speech recognisers that a scenario can name, one architecture a file."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from fedsim.errors import DataError, did_you_mean
from fedsim.plugin import validated
from fedsim.victim import Loss

__all__ = ["RECOGNISERS", "Recogniser", "as_recogniser"]


class Recogniser(BaseModel, ABC):
    """Settings of one kind of speech recogniser.

    Inputs are (B, T, F) float32 padded with 0, lengths (B,) int64 frames, targets (B, L) int64
    padded with -100, each sequence ending with the label 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="name under which a scenario asks for it")

    units: ClassVar[Literal["wordpieces", "characters"]] = "wordpieces"
    head: ClassVar[str] = "head"
    points: ClassVar[tuple[str, ...]] = ("input",)
    loss: ClassVar[Loss]

    @abstractmethod
    def build(self, features: int, vocabulary: int) -> nn.Module:
        """A new model for `features` values a frame, weights from torch's global generator."""

    @abstractmethod
    def transcribe(
        self, module: nn.Module, inputs: Tensor, lengths: Tensor, longest: int
    ) -> list[Tensor]:
        """Greedy label sequences of at most `longest` labels, without the label 0."""


from fedsim.tasks.recognisers.las import LAS  # noqa: E402

RECOGNISERS: dict[str, type[Recogniser]] = {"las": LAS}


def as_recogniser(value: Any) -> Recogniser:
    """The recogniser that a scenario's `model` asks for: a name, or a table with settings."""
    if isinstance(value, Recogniser):
        return value
    settings = {"name": value} if isinstance(value, str) else value
    if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
        raise DataError(f'model is {value!r}; expected a name, or a table such as {{name = "las"}}')
    name = settings["name"]
    if name not in RECOGNISERS:
        raise DataError(f"no recogniser '{name}'. {did_you_mean(name, RECOGNISERS)}")
    return validated(RECOGNISERS[name], settings, "model")
