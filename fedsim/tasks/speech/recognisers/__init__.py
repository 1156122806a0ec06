"""The speech recognisers that a scenario can name, one architecture a file."""

from typing import Any

from fedsim.tasks.models import FACTORY, as_model
from fedsim.tasks.speech.recognisers.ctc import DeepSpeech, OwnRecogniser
from fedsim.tasks.speech.recognisers.las import LAS
from fedsim.tasks.speech.recognisers.recogniser import PADDING, Recogniser

__all__ = ["PADDING", "RECOGNISERS", "OwnRecogniser", "Recogniser", "as_recogniser"]

RECOGNISERS: dict[str, type[Recogniser]] = {"deepspeech": DeepSpeech, "las": LAS}
"""The recognisers by name; a function of the user's own is named by a reference."""


def as_recogniser(value: Any) -> Recogniser:
    """Validate the recogniser that a scenario's `model` asks for; see `as_model`."""
    if isinstance(value, Recogniser):
        return value
    known: dict[str, type[Recogniser]] = {**RECOGNISERS, FACTORY: OwnRecogniser}
    return as_model(value, known, '{name = "las", decoder = 256}')
