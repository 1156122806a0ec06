"""The record that describes the arrays of a client's reply."""

from flwr.app import ConfigRecord
from pydantic import BaseModel

from fedsim.records import Kind, Reduction, Update

UPDATE_KEY = "fedsim.update"
"""Key of a reply's record that describes its arrays, a `Meaning`."""

CLIENT_KEY = "fedsim.client"
"""Key of a reply's record with the client's number and the rounds that its defenses remember."""


class Meaning(BaseModel):
    """The fields of an `Update` other than its arrays; `buffers` are names of arrays."""

    kind: Kind
    optimizer: str
    momentum: float
    weight_decay: float
    steps: int
    num_examples: int
    reduction: Reduction
    buffers: list[str]
    lr: float | None = None


def update_record(update: Update) -> ConfigRecord:
    """The record that describes an update's arrays."""
    fields = {name: getattr(update, name) for name in Meaning.model_fields}
    meaning = Meaning(**{**fields, "buffers": list(update.buffers)})
    return ConfigRecord(meaning.model_dump(exclude_none=True))
