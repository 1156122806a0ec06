"""Reconstructions as JSON and safetensors, in which they come back from an isolated adversary."""

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, contiguous_format

from fedsim.metrics.claims import EXAMPLES, WHOLE, plain
from fedsim.records import Reconstruction

MOST_EXAMPLES = 10_000
"""Largest number of examples of a claim."""

MOST_TOKENS = 1_000_000
"""Largest number of tokens, and of characters, in the texts of a claim: metrics compare each."""

MOST_COUNTED = 10_000_000
"""Largest sum of a claim's counts."""

MOST_TEXT = 16 * 2**20
"""Largest number of bytes of a claim's JSON, which takes thirty times that in memory."""

MOST_HEADER = 8 * 2**20
"""Largest number of bytes of the names and shapes of a claim's tensors."""

MOST_VALUES = 100
"""The largest number of values of one diagnostic in the log."""

LENGTH, HEADER = struct.Struct(">Q"), struct.Struct("<Q")
"""The number of bytes of JSON, and of the header of safetensors."""


class InvalidClaim(ValueError):
    """Bytes that hold something else than claims."""


def to_bytes(claims: Sequence[Reconstruction]) -> bytes:
    """Convert claims to bytes: the length of JSON, JSON, and tensors as safetensors.

    Raises:
        TypeError: A field holds something else than `Reconstruction` says.
    """
    tensors: dict[str, Tensor] = {}
    tables = [_table(claim, f"{number}", tensors) for number, claim in enumerate(claims)]
    text = json.dumps(tables).encode()
    return b"".join((LENGTH.pack(len(text)), text, save(tensors)))


def from_bytes(content: bytes) -> list[Reconstruction]:
    """Read claims from the bytes of `to_bytes`, which an adversary may have made otherwise.

    Raises:
        InvalidClaim: They hold something else than claims, or claims beyond the limits above.
    """
    try:
        (length,) = LENGTH.unpack_from(content)
        _at_most("JSON", length, MOST_TEXT)
        tables = json.loads(content[LENGTH.size : LENGTH.size + length])
        (header,) = HEADER.unpack_from(content, LENGTH.size + length)
        _at_most("header", header, MOST_HEADER)
        tensors = load(content[LENGTH.size + length :])
        claims = [_claim(table, f"{number}", tensors) for number, table in enumerate(tables)]
    except InvalidClaim:
        raise
    except Exception as error:
        raise InvalidClaim(f"{type(error).__name__}: {error}") from error
    return claims


def as_json(value: Any) -> Any:
    """Diagnostics as JSON values: large tensors by their shapes, long lists and texts cut off."""
    if isinstance(value, Tensor):
        return value.tolist() if value.numel() <= MOST_VALUES else f"tensor of {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        # One more is shown, too: as many are left when what an isolated adversary says comes back.
        shown = [as_json(each) for each in list(value)[: MOST_VALUES + 1]]
        left = len(value) - MOST_VALUES
        return [*shown[:MOST_VALUES], f"and {left} more"] if left > 1 else shown
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such numbers
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)[:2000]


def _table(claim: Reconstruction, number: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A claim's fields as JSON values; its tensors are added by `NUMBER.FIELD` and a position."""
    claim = plain(claim)
    found: dict[str, Any] = {}

    def keep(name: str, value: Tensor) -> None:
        tensors[f"{number}.{name}"] = value.clone(memory_format=contiguous_format)

    for name in WHOLE:
        if (value := getattr(claim, name)) is not None:
            keep(name, value)
    for name in EXAMPLES:
        if (value := getattr(claim, name)) is not None:
            found[name] = len(value)
            for position, one in enumerate(value):
                keep(f"{name}.{position}", one)
    for name in ("label_counts", "token_counts"):
        if (value := getattr(claim, name)) is not None:
            found[name] = [*value.items()]
    if claim.label_set is not None:
        found["label_set"] = sorted(claim.label_set)
    for name in ("num_labels", "text", "attributes", "objective", "outcomes", "trace"):
        if (value := getattr(claim, name)) is not None:
            found[name] = value
    found["diagnostics"] = as_json(claim.diagnostics)
    return found


def _claim(table: Any, number: str, tensors: Mapping[str, Tensor]) -> Reconstruction:
    """A claim from what `_table` made; raises `InvalidClaim` and whatever odd values raise."""
    if not isinstance(table, dict):
        raise InvalidClaim(f"a claim is {type(table).__name__}, expected a table")
    fields: dict[str, Any] = {
        name: tensors[f"{number}.{name}"] for name in WHOLE if f"{number}.{name}" in tensors
    }
    for name in EXAMPLES:
        if name in table:
            count = _few(name, int(table[name]))
            fields[name] = [tensors[f"{number}.{name}.{position}"] for position in range(count)]
            if name != "inputs":
                _brief(name, (each.numel() for each in fields[name]))
    for name in ("label_counts", "token_counts"):
        if name in table:
            pairs = {int(key): int(count) for key, count in table[name]}
            if sum(map(abs, pairs.values())) > MOST_COUNTED:
                raise InvalidClaim(f"{name} adds up to more than {MOST_COUNTED}")
            fields[name] = pairs
    if "label_set" in table:
        fields["label_set"] = frozenset(map(int, table["label_set"]))
    if "num_labels" in table:
        fields["num_labels"] = int(table["num_labels"])
    for name in ("text", "outcomes"):
        if name in table:
            _few(name, len(table[name]))
            fields[name] = [str(one) for one in table[name]]
            _brief(name, map(len, fields[name]))
    if "attributes" in table:
        fields["attributes"] = {
            str(name): [{str(key): float(score) for key, score in one.items()} for one in each]
            for name, each in table["attributes"].items()
        }
    if "objective" in table:
        fields["objective"] = float(table["objective"])
    fields["trace"] = [(int(step), float(value)) for step, value in table.get("trace", ())]
    fields["diagnostics"] = dict(table.get("diagnostics") or {})
    return Reconstruction(**fields)


def _at_most(what: str, size: int, most: int) -> None:
    if size > most:
        raise InvalidClaim(f"its {what} has {size} bytes, at most {most}")


def _brief(name: str, lengths: Iterable[int]) -> None:
    if (length := sum(lengths)) > MOST_TOKENS:
        raise InvalidClaim(f"{name} has a length of {length} together, at most {MOST_TOKENS}")


def _few(name: str, count: int) -> int:
    if not 0 <= count <= MOST_EXAMPLES:
        raise InvalidClaim(f"{name} holds {count} examples, at most {MOST_EXAMPLES}")
    return count
