"""The installed plugins, scenarios, models and data: search and description."""

import inspect
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from fedsim import plugin
from fedsim.adversary import Adversary
from fedsim.defense import Defense
from fedsim.described import description
from fedsim.errors import PluginError
from fedsim.metric import Metric
from fedsim.metrics import installed
from fedsim.scenario import Scenario, scenario_names
from fedsim.spec import Spec
from fedsim.task import RUN_FIELDS, Task

KINDS = ("adversaries", "defenses", "scenarios", "tasks", "metrics", "models", "data")


@dataclass(frozen=True, slots=True)
class Entry:
    """A plugin, scenario, model or data set that a scenario can name.

    Attributes:
        kind: One of `KINDS`.
        name: What a scenario calls it.
        summary: What it is, in a sentence.
        cls: Its class; None for scenarios and data, and for what cannot be loaded.
        task: The task that a model or data set belongs to.
    """

    kind: str
    name: str
    summary: str
    cls: type[BaseModel] | None = None
    task: str = ""

    @property
    def words(self) -> Iterator[str]:
        """The names and terms under which it is found."""
        yield self.name
        yield from getattr(self.cls, "keywords", ())

    @property
    def attacks(self) -> str:
        """The modalities that an adversary attacks; empty for everything else."""
        if self.cls is None or not issubclass(self.cls, Adversary):
            return ""
        return (
            "any task" if Spec in self.cls.suits else ", ".join(o.modality for o in self.cls.suits)
        )

    def matches(self, word: str) -> bool:
        """Whether a word of its terms, summary or citation begins with this word."""
        text = " ".join([*self.words, self.summary, getattr(self.cls, "cites", "")])
        return re.search(rf"\b{re.escape(_plain(word))}", _plain(text)) is not None

    def describe(self) -> dict[str, Any]:
        """Its facts: text, needs, what it recovers or scores, paper, settings.

        Raises:
            PluginError: It cannot be loaded.
        """
        cls = self.cls
        if cls is None and self.kind in plugin.GROUPS:
            cls = plugin.find(self.kind, self.name)
        facts: dict[str, Any] = {"name": self.name, "kind": self.kind}
        facts |= {"task": self.task} if self.task else {}
        facts["text"] = self.summary if cls is None else inspect.getdoc(cls) or ""
        if cls is None:
            return facts
        hidden = set(RUN_FIELDS if issubclass(cls, Task) else ())
        if issubclass(cls, Adversary):
            facts |= {
                "attacks": self.attacks,
                "needs": cls.by_default().names(),
                "needs_with": {
                    setting: (chosen.requires() & ~cls.by_default()).names()
                    for setting, chosen in cls.asking_more().items()
                },
                "recovers": sorted(cls.recovers),
                "cites": cls.cites,
                "requires": [
                    f"{one.needed} ({one.quantity}): {one.why}" for one in cls.requirements
                ],
            }
        elif issubclass(cls, Metric):
            facts |= {
                "reads": list(cls.fields),
                "title": cls.shown.title,
                "means": cls.shown.words,
                "better for the attacker": "lower" if cls.shown.lower else "higher",
                "range": _range(*cls.shown.range),
            }
        elif issubclass(cls, Defense) and cls.protect is Defense.protect:
            hidden = {"layers"}  # of an update, which it does not touch
        shared = Defense.model_fields if self.kind == "defenses" else {}  # after those of its own
        names = sorted(cls.model_fields, key=lambda name: name in shared)
        facts["settings"] = describe_settings(cls, [name for name in names if name not in hidden])
        return facts


def _range(low: float, high: float) -> str:
    """Bounds of a metric's values in words."""
    if low > -math.inf:
        return f"{low:g} to {high:g}"
    return f"up to {high:g}" if high < math.inf else "any number"


def _plain(text: str) -> str:
    """Words in small letters, in one spelling ("quantization" for "quantisation", too)."""
    return " ".join(
        re.findall(r"\w+", text.lower().replace("_", " ").replace("isation", "ization"))
    )


def entries(kinds: Iterable[str] = KINDS, data: Path | None = None) -> list[Entry]:
    """Find everything of these kinds, in their order.

    Scenarios of papers' figures are left out: `fedsim reproduce` lists them.

    Args:
        kinds: Some of `KINDS`.
        data: A folder whose data sets are listed, too.
    """
    return [entry for kind in kinds for entry in _of(kind, data)]


def matching(word: str, data: Path | None = None) -> list[Entry]:
    """Find entries with the word in their name, terms, summary or citation."""
    return [entry for entry in entries(data=data) if entry.matches(word)]


def _of(kind: str, data: Path | None = None) -> Iterator[Entry]:
    if kind == "scenarios":
        for name in scenario_names(papers=False):
            try:
                yield Entry(kind, name, Scenario.load(name).description)
            except PluginError as error:
                yield Entry(kind, name, f"(cannot be loaded: {error})")
    elif kind == "metrics":
        try:
            metrics = installed()
        except PluginError as error:
            yield Entry(kind, "(none)", f"(cannot be loaded: {error})")
            return
        for name, metric in metrics.items():
            yield Entry(kind, name, metric.summary(), type(metric))
    elif kind in plugin.GROUPS:
        for name in plugin.names(kind):
            try:
                cls = plugin.find(kind, name)
            except PluginError as error:
                yield Entry(kind, name, f"(cannot be loaded: {error})")
            else:
                yield Entry(kind, name, cls.summary(), cls)
    else:
        for owner in _of("tasks"):
            if owner.cls is None:
                continue
            task = cast(type[Task], owner.cls)
            if kind == "models":
                for name, model in task.models.items():
                    first = (inspect.getdoc(model) or "").partition("\n")[0]
                    yield Entry(kind, name, first, model, owner.name)
            else:
                for name, text in task.sources.items():
                    yield Entry(kind, name, text, None, owner.name)
                for name in task.local_data(data) if data is not None and data.is_dir() else ():
                    yield Entry(kind, name, f"in {data}", None, owner.name)


NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


class _Schema(GenerateJsonSchema):
    """A schema of every setting, those of types that JSON does not have included."""

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
        return {}


def describe_settings(cls: type[BaseModel], names: Iterable[str]) -> list[dict[str, str]]:
    """Describe fields of a plugin.

    Args:
        cls: The plugin's class.
        names: Which of its fields, in this order.

    Returns:
        For each field its name, type, default and description, as text.
    """
    schema = cls.model_json_schema(schema_generator=_Schema).get("properties", {})
    return [
        {
            "name": name,
            "type": _type(schema[name]),
            "default": _default(cls.model_fields[name]),
            "description": description(cls, name),
        }
        for name in names
    ]


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in words, such as `number >= 0`; null is left out."""
    if "anyOf" in schema:
        types = (_type(one) for one in schema["anyOf"] if one != {"type": "null"})
        return " or ".join(dict.fromkeys(types))
    if "const" in schema:
        return _toml(schema["const"])
    if "enum" in schema:
        return " or ".join(map(_toml, schema["enum"]))
    kind = schema.get("type", "table" if "$ref" in schema else "any value")
    if kind == "array":
        items = [_type(one) for one in schema.get("prefixItems", ())]
        return (
            f"list of {_several(schema.get('items', {}))}" if not items else f"[{', '.join(items)}]"
        )
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"table of {_several(values)}" if isinstance(values, dict) else "table"
    bounds = [f"{sign} {schema[key]:g}" for key, sign in BOUNDS.items() if key in schema]
    return f"{NAMES.get(kind, kind)} {', '.join(bounds)}".strip()


def _several(schema: dict[str, Any]) -> str:
    """The type of a list's items, such as `integers >= 1`."""
    kind, *bounds = _type(schema).split(" ", 1)
    return " ".join([f"{kind}s" if kind in NAMES.values() else kind, *bounds])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "none" if value is None else _toml(value)


def _toml(value: Any) -> str:
    """A value as a scenario has it, on one line."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, dict):
        names = {str(key): one for key, one in value.items()}
        pairs = (
            f"{key if key.isidentifier() else json.dumps(key)} = {_toml(one)}"
            for key, one in names.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, set | frozenset):
        value = sorted(value, key=str)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, as TOML has it
    return json.dumps(value, default=str, ensure_ascii=False)
