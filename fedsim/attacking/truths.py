"""Truths joined: of several clients, of several rounds, and each example once."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsim.records import Truth


def union(truths: Sequence[Truth]) -> Truth:
    """Join the examples of several clients; a field that one of them lacks is None."""

    def joined(parts: Sequence[Any]) -> Any:
        if any(part is None for part in parts):
            return None
        if isinstance(parts[0], Tensor):
            return torch.cat(list(parts))
        return [example for part in parts for example in part]

    fields = {
        one.name: joined([getattr(truth, one.name) for truth in truths])
        for one in dataclasses.fields(Truth)
        if one.name != "attributes"
    }
    shared = set.intersection(*(set(truth.attributes) for truth in truths))
    attributes = {key: joined([truth.attributes[key] for truth in truths]) for key in shared}
    return Truth(**fields, attributes=attributes)


def distinct(truth: Truth) -> Truth:
    """Keep one of examples with equal inputs, tokens and text; all if only labels are known."""
    content = [each for each in (truth.inputs, truth.tokens, truth.text) if each is not None]
    first: dict[tuple[Any, ...], int] = {}
    for index, example in enumerate(zip(*content, strict=True)):
        first.setdefault(tuple(map(_hashed, example)), index)
    if not content or len(first) == truth.num_examples:
        return truth
    kept = [*first.values()]

    def of_kept(values: Any) -> Any:
        if isinstance(values, Tensor):
            return values[kept]
        return None if values is None else [values[index] for index in kept]

    fields = {
        one.name: of_kept(getattr(truth, one.name))
        for one in dataclasses.fields(Truth)
        if one.name not in ("labels", "attributes")
    }
    labels = truth.labels
    if labels is not None and truth.sequences is not None:
        labels = torch.cat([one[one >= 0] for one in fields["sequences"]])
    elif labels is not None:
        labels = labels[kept]
    attributes = {key: of_kept(values) for key, values in truth.attributes.items()}
    return Truth(**fields, labels=labels, attributes=attributes)


def _hashed(value: Tensor | str) -> Any:
    if isinstance(value, str):
        return value
    return tuple(value.shape), content_of(value)


def content_of(value: Tensor) -> bytes:
    """The bytes of a tensor's values, also of a dtype that NumPy lacks, such as bfloat16."""
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
