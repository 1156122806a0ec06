"""Settings of the text task: data, model, split and partition."""

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny

from fedsim.tasks.partition import PARTITIONS, Iid, Partition, Whole, as_partition
from fedsim.tasks.partitioned import Labelled
from fedsim.tasks.text.data import MESSAGES
from fedsim.tasks.text.languages import Language, as_language
from fedsim.tasks.text.languages.language import SMALL, Aim, Parameters

__all__ = ["TextSettings"]

_KINDS = {"sender": Whole, **PARTITIONS}


class TextSettings(Labelled):
    """Fields of the text task; they are those of a scenario's `task` table."""

    data: str = Field(default=MESSAGES, min_length=1)
    """ "messages" (embedded), a jsonl, csv or tsv under --data, or "hub:OWNER/SET[/CONFIG]"."""

    test_data: str | None = None
    """Another table under --data, whose rows are the test split."""

    text_column: str | None = None
    """Column of texts, if unusual."""

    label_column: str | None = None
    """Column of labels, if unusual."""

    public: str | None = None
    """Texts that everybody knows, for a learned tokenizer, guesses and the PRIOR knowledge:
    "messages" (embedded), or a text file or a folder of them under --data; by default the
    embedded ones for data = "messages", else those of the auxiliary examples."""

    task: Aim = "classification"
    """What the model is trained for."""

    masked: float = Field(default=0.15, gt=0, lt=1)
    """Share of a text's tokens that masked-lm masks."""

    parameters: Parameters = "all"
    """What is trained and sent: "all"; "no-embeddings": all but the word embeddings; "lamp":
    also without positional embeddings and biases of blocks."""

    dropout: bool = False
    """Train with the model's own dropout."""

    model: Annotated[SerializeAsAny[Language], BeforeValidator(as_language)] = Language(
        config="bert", settings=SMALL
    )
    """a model of transformers: hub:NAME, or a table with a config and its settings."""

    vocabulary: int = Field(default=1000, ge=128, le=65_536)
    """Word pieces of a learned tokenizer."""

    longest: int | None = Field(default=None, ge=1)
    """Use texts of so many tokens at most, those around a text included."""

    partition: Annotated[
        SerializeAsAny[Partition], BeforeValidator(partial(as_partition, kinds=_KINDS))
    ] = Iid()
    """How data is cut: "sender", or any of the images task."""
