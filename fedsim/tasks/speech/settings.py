"""Settings of the speech task: data, sound, model, split and partition."""

from functools import partial
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PositiveFloat, SerializeAsAny, model_validator

from fedsim.tasks.partition import PARTITIONS, ByLength, Partition, Whole, as_partition
from fedsim.tasks.partitioned import Partitioned
from fedsim.tasks.speech.features import Features
from fedsim.tasks.speech.recognisers import Recogniser, as_recogniser
from fedsim.tasks.speech.recognisers.las import LAS

_KINDS = {"speaker": Whole, "length": ByLength, **PARTITIONS}


class SpeechSettings(Partitioned):
    """Fields of the speech task; they are those of a scenario's `task` table."""

    data: str = Field(default="voices", min_length=1)
    """Data set: "voices" (synthetic), a csv, a folder in LibriSpeech's layout or with one subfolder
    a word, or "speech-commands" in the folder of --data; a path; "module:function"; or
    "hub:OWNER/SET[/CONFIG]"."""

    text: str = Field(default="sentences", min_length=1)
    """Text that word pieces are learned from and that synthetic voices read: "sentences"
    (embedded), or a text file or a folder of text files in the folder of --data."""

    vocabulary: int = Field(default=256, ge=32, le=65_536)
    """Number of word pieces, the end of a sequence included. There are always 29 characters."""

    features: Features = Features()
    """How sound becomes frames."""

    speakers: int | None = Field(default=None, ge=1)
    """Number of speakers to use; by default all, and 20 synthetic voices."""

    utterances: int | None = Field(default=None, ge=1)
    """Number of utterances to use of each speaker; by default all, and 12 of a synthetic voice."""

    longest: int | None = Field(default=None, ge=1)
    """Largest number of characters in a transcript; by default there is no limit, and 60 for
    synthetic voices."""

    per_length: int | None = Field(default=None, ge=1)
    """Largest number of transcripts of each length."""

    seconds: tuple[PositiveFloat, PositiveFloat] | None = None
    """Smallest and largest duration of an utterance in seconds; others are not used."""

    cut: bool = False
    """Whether longer utterances are cut at pauses into pieces of a duration that `seconds` permits.
    A piece gets the share of the transcript that it has of the sound."""

    least_utterances: int | None = Field(default=None, ge=1)
    """Smallest number of utterances that a speaker must have to be used."""

    auxiliary_utterances: int | None = Field(default=None, ge=1)
    """Number of auxiliary utterances of each speaker, which no client holds; replaces
    `auxiliary_fraction`."""

    auxiliary_speakers: int | None = Field(default=None, ge=1)
    """Number of speakers that auxiliary utterances are of, drawn by the seed; by default all."""

    partition: Annotated[
        SerializeAsAny[Partition], BeforeValidator(partial(as_partition, kinds=_KINDS))
    ] = Whole()
    """How utterances are divided among clients: "speaker", "length", or any kind of the images
    task."""

    model: Annotated[SerializeAsAny[Recogniser], BeforeValidator(as_recogniser)] = LAS()
    """Recogniser to train: a name, a function of your own ("module:make"), or a table with either
    and settings."""

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
