"""The speech recognisers that a scenario can name, one architecture a file."""

from typing import Any

from fedsim.errors import DataError, did_you_mean
from fedsim.plugin import table, validated
from fedsim.references import is_reference
from fedsim.tasks.models.factory import FACTORY
from fedsim.tasks.speech.recognisers.ctc import DeepSpeech, OwnRecogniser
from fedsim.tasks.speech.recognisers.las import LAS
from fedsim.tasks.speech.recognisers.recogniser import PADDING, Recogniser

__all__ = ["PADDING", "RECOGNISERS", "OwnRecogniser", "Recogniser", "as_recogniser"]

RECOGNISERS: dict[str, type[Recogniser]] = {"deepspeech": DeepSpeech, "las": LAS}
"""The recognisers by name; a function of the user's own is named by a reference."""


def as_recogniser(value: Any) -> Recogniser:
    """Validate the recogniser that a scenario's `model` asks for.

    Args:
        value: A name ("las", "module:function"), or a table with a name and settings
            ({name = "las", decoder = 256}).

    Raises:
        DataError: The name is unknown.
        ScenarioError: A setting is unknown or has the wrong type.
    """
    if isinstance(value, Recogniser):
        return value
    settings = table(value, "task.model", example='{name = "las", decoder = 256}')
    name = settings["name"]
    if is_reference(name):
        return validated(OwnRecogniser, settings, "task.model")
    if name not in RECOGNISERS:
        raise DataError(
            f"task.model: no recogniser '{name}'. {did_you_mean(name, [*RECOGNISERS, FACTORY])}"
        )
    return validated(RECOGNISERS[name], settings, "task.model")
