"""Settings of a plugin for `fedsim show`: types with their bounds, and defaults, as in TOML."""

import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

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
            "description": " ".join((cls.model_fields[name].description or "").split()),
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
        return f"list of {_several(schema['items'])}" if not items else f"[{', '.join(items)}]"
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
        pairs = (
            f"{key if key.isidentifier() else json.dumps(key)} = {_toml(one)}"
            for key, one in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, default=str, ensure_ascii=False)
