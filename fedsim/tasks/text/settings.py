"""Settings of the text task: data, model, split and partition."""

from functools import partial
from typing import Annotated

from pydantic import BeforeValidator, Field, SerializeAsAny

from fedsim.tasks.partition import PARTITIONS, Iid, Partition, Whole, as_partition
from fedsim.tasks.partitioned import Labelled
from fedsim.tasks.text.data import MESSAGES
from fedsim.tasks.text.languages import Language, OwnLanguage, as_language
from fedsim.tasks.text.languages.language import SMALL, Aim, Parameters

_KINDS = {"sender": Whole, **PARTITIONS}


class TextSettings(Labelled):
    """Fields of the text task; they are those of a scenario's `task` table."""

    data: str = Field(default=MESSAGES, min_length=1)
    """Data set: "messages" (embedded), a jsonl, csv, tsv or parquet file in the folder of --data or
    its path, "module:function", or "hub:OWNER/SET[/CONFIG]"."""

    test_data: str | None = None
    """Another table in the folder of --data, whose rows are the test split."""

    text_column: str | None = None
    """Name of the column of texts; by default the first of text, sentence, message, content,
    review."""

    label_column: str | None = None
    """Name of the column of labels; by default the first of label, labels, class, category, topic.
    """

    public: str | None = None
    """Public texts for a learned tokenizer, informed guesses and the knowledge PRIOR: "messages"
    (embedded), or a text file or a folder of text files in the folder of --data. By default the
    embedded ones for data = "messages", otherwise the auxiliary examples."""

    task: Aim = "classification"
    """What the model is trained for: "classification" or "masked-lm"."""

    masked: float = Field(default=0.15, gt=0, lt=1)
    """Share of a text's tokens that "masked-lm" masks."""

    parameters: Parameters = "all"
    """Parameters that are trained and sent: "all"; "no-embeddings", all but the word embeddings; or
    "lamp", without positional embeddings and the biases of blocks either."""

    dropout: bool = False
    """Whether the model's own dropout is active in training."""

    model: Annotated[SerializeAsAny[Language | OwnLanguage], BeforeValidator(as_language)] = (
        Language(config="bert", settings=SMALL)
    )
    """Language model: hub:NAME, a table with a config of transformers and its settings, or a
    function of your own ("module:make")."""

    vocabulary: int = Field(default=1000, ge=128, le=65_536)
    """Number of word pieces of a learned tokenizer."""

    longest: int | None = Field(default=None, ge=1)
    """Largest number of tokens in a text, special tokens included; longer texts are not used."""

    partition: Annotated[
        SerializeAsAny[Partition], BeforeValidator(partial(as_partition, kinds=_KINDS))
    ] = Iid()
    """How texts are divided among clients: "sender", or any kind of the images task."""
