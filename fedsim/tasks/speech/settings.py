"""Settings of the speech task: data, sound, model, split and partition."""

from functools import partial
from typing import Annotated, Self

from pydantic import (
    BeforeValidator,
    Field,
    PositiveFloat,
    SerializeAsAny,
    model_validator,
)

from fedsim.tasks.partition import PARTITIONS, ByLength, Partition, Whole, as_partition
from fedsim.tasks.partitioned import Partitioned
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.recognisers import Recogniser, as_recogniser
from fedsim.tasks.speech.recognisers.las import LAS

__all__ = ["SpeechSettings"]

_KINDS = {"speaker": Whole, "length": ByLength, **PARTITIONS}


class SpeechSettings(Partitioned):
    """Fields of the speech task; they are those of a scenario's `task` table."""

    data: str = Field(default="voices", min_length=1)
    """ "voices" (synthetic), a csv, a folder in the layout of LibriSpeech, or
    "speech-commands", under --data, or "hub:OWNER/SET[/CONFIG]"."""

    text: str = Field(default="sentences", min_length=1)
    """What word pieces are learned from, and voices read: "sentences" (embedded), or a text
    file or a folder of them under --data."""

    vocabulary: int = Field(default=256, ge=32, le=65_536)
    """Word pieces, the end of a sequence included; characters are always 29."""

    features: Features = Features()
    """How sound becomes frames."""

    speakers: int | None = Field(default=None, ge=1)
    """Use so many speakers; voices: 20."""

    utterances: int | None = Field(default=None, ge=1)
    """Use so many of each speaker; voices: 12."""

    longest: int | None = Field(default=None, ge=1)
    """Use transcripts of so many characters at most; voices: 60."""

    per_length: int | None = Field(default=None, ge=1)
    """Use at most so many transcripts of each length."""

    seconds: tuple[PositiveFloat, PositiveFloat] | None = None
    """Use utterances that last from so many seconds to so many."""

    cut: bool = False
    """With seconds: cut longer utterances at pauses; what is said in a piece is told by its
    share of the sound."""

    least_utterances: int | None = Field(default=None, ge=1)
    """Of those chosen so far, leave out speakers who have fewer."""

    auxiliary_utterances: int | None = Field(default=None, ge=1)
    """So many of each speaker are held by no client, instead of a share of all."""

    auxiliary_speakers: int | None = Field(default=None, ge=1)
    """Those held by no client are of so many speakers alone, drawn by the seed."""

    partition: Annotated[
        SerializeAsAny[Partition], BeforeValidator(partial(as_partition, kinds=_KINDS))
    ] = Whole()
    """How data is cut: "speaker", or any of the images task."""

    model: Annotated[SerializeAsAny[Recogniser], BeforeValidator(as_recogniser)] = LAS()
    """a name, or a table with a name and the recogniser's settings."""

    @model_validator(mode="after")
    def _cuts_to_a_length(self) -> Self:
        if self.cut and self.seconds is None:
            raise ValueError(
                "task.cut takes the length of the pieces from task.seconds, and there is none: set "
                "task.seconds = [1.0, 2.0], or leave out task.cut"
            )
        if self.seconds is not None and self.seconds[0] >= self.seconds[1]:
            raise ValueError(
                f"task.seconds = {list(self.seconds)}: expected the lower number first"
            )
        return self
