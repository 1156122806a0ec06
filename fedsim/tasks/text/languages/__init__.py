"""Language models that a scenario can name: settings, tokenizers and losses."""

from typing import Any

from fedsim.libraries import HUB
from fedsim.plugin import table, validated
from fedsim.references import is_reference
from fedsim.tasks.text.languages.factory import OwnLanguage
from fedsim.tasks.text.languages.language import Language

__all__ = ["Language", "OwnLanguage", "as_language"]


def as_language(value: Any) -> Language | OwnLanguage:
    """Validate the language model that a scenario's `model` asks for.

    Args:
        value: "hub:NAME"; "module:function"; a model type or folder alone ("bert", with the default
            sizes of `transformers`); or a table with a name and settings.

    Raises:
        DataError: The value is none of these.
        ScenarioError: A setting is unknown or has the wrong type.
    """
    if isinstance(value, Language | OwnLanguage):
        return value
    example = '{name = "transformers", config = "bert", settings = {hidden_size = 64}}'
    settings = table(value, "task.model", example=example)
    if is_reference(settings["name"]):
        return validated(OwnLanguage, settings, "task.model")
    if isinstance(value, str) and not value.startswith(HUB):
        settings = {"name": "transformers", "config": value}
    return validated(Language, settings, "task.model")
