"""What a client says of the arrays in its reply: the record that travels beside them."""

from flwr.app import ConfigRecord
from pydantic import BaseModel

from fedsim.records import Kind, Reduction, Update

__all__ = ["CLIENT_KEY", "UPDATE_KEY", "Meaning", "update_record"]

UPDATE_KEY = "fedsim.update"
"""In a reply: what its arrays mean, a `Meaning`."""

CLIENT_KEY = "fedsim.client"
"""In a reply: the client's number, and how many rounds its defenses remember."""


class Meaning(BaseModel):
    """The fields of an `Update` that are no arrays; `buffers` are names."""

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
    """What an update's arrays mean, as it travels beside them."""
    fields = {name: getattr(update, name) for name in Meaning.model_fields}
    meaning = Meaning(**{**fields, "buffers": list(update.buffers)})
    return ConfigRecord(meaning.model_dump(exclude_none=True))
