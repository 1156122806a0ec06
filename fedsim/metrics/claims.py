"""The form of a claim's fields, and shapes that no metric can match to an original."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedsim.records import Reconstruction, Spec, Truth

WHOLE = ("labels", "label_scores", "features")
"""Fields that are one tensor."""

EXAMPLES = ("inputs", "tokens", "sequences")
"""Fields with a tensor for each example."""


def plain(claim: Reconstruction) -> Reconstruction:
    """Convert the fields of a claim to what `Reconstruction` says, with tensors on the CPU.

    Every claim passes through it, whether or not its adversary had a process of its own, so that
    both are scored alike. `diagnostics` is returned unchanged.

    Raises:
        TypeError: A field holds something else, and cannot be converted.
    """
    fields: dict[str, Any] = {}
    for name in WHOLE:
        if (value := getattr(claim, name)) is not None:
            fields[name] = _tensor(name, value)
    if "labels" in fields:
        fields["labels"] = _labels(fields["labels"])
    for name in EXAMPLES:
        if (value := getattr(claim, name)) is not None:
            fields[name] = [_tensor(f"{name}[{at}]", one) for at, one in enumerate(value)]
    for name, (convert, expected) in FORMS.items():
        if (value := getattr(claim, name)) is not None:
            try:
                fields[name] = convert(value)
            except (TypeError, ValueError, AttributeError) as error:
                found = f"{type(value).__name__} {str(value)[:60]!r}"
                raise TypeError(f"{name} holds {found}, expected {expected}") from error
    return Reconstruction(**fields, diagnostics=claim.diagnostics)


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} holds {type(value).__name__}, expected a tensor")
    return value.detach().cpu()


def _counts(value: Any) -> dict[int, int]:
    found = {int(key): int(count) for key, count in value.items()}
    if min(found.values(), default=0) < 0 or [*found.values()] != [*value.values()]:
        raise ValueError
    return found


def _labels(value: Tensor) -> Tensor:
    """Labels as int64; raises `TypeError` for fractions."""
    whole = value.long()
    if value.is_floating_point() and not torch.equal(whole.to(value.dtype), value):
        raise TypeError(
            f"labels holds {value.dtype} values such as {float(value.flatten()[0]):g}, expected "
            "whole numbers"
        )
    return whole


def _attributes(value: Any) -> dict[str, list[dict[str, float]]]:
    return {
        str(name): [{str(key): float(score) for key, score in one.items()} for one in each]
        for name, each in value.items()
    }


COUNTS = "how often each number occurs, in whole numbers from 0 on"
"""What counts should hold."""

FORMS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(("label_counts", "token_counts"), (_counts, COUNTS)),
    **dict.fromkeys(("text", "outcomes"), (lambda value: [*map(str, value)], "a list of texts")),
    "label_set": (lambda value: frozenset(map(int, value)), "a set of labels"),
    "num_labels": (int, "a number"),
    "attributes": (_attributes, "for each attribute a list of scores by candidate"),
    "objective": (float, "a number"),
    "trace": (
        lambda value: [(int(step), float(loss)) for step, loss in value],
        "pairs (iteration, objective)",
    ),
}
"""How each other field is converted, and what it should hold."""


def misshapen(claimed: Reconstruction, spec: Spec, truth: Truth | None = None) -> str:
    """Say which field of a claim has another shape than the task's examples; "" if none has.

    Metrics count such a claim as wrong, which looks like an attack that found nothing.

    Args:
        claimed: The claim.
        spec: What examples of the task look like.
        truth: The victim's examples, whose features say how wide these are.
    """
    for number, one in enumerate(claimed.inputs or ()):
        if spec.input_shape is not None and tuple(one.shape) != spec.input_shape:
            return (
                f"inputs[{number}] has shape {tuple(one.shape)}, and examples have "
                f"{spec.input_shape}: claim one tensor of this shape for each example"
            )
    labels = claimed.labels
    if labels is not None and labels.dim() > 1 and labels.shape[1:].numel() != 1:
        return (
            f"labels has shape {tuple(labels.shape)}, expected (N,): claim one label for each "
            "example, such as scores.argmax(dim=1)"
        )
    if truth is not None and truth.features is not None and claimed.features is not None:
        found, width = tuple(claimed.features.shape), truth.features.shape[1]
        if len(found) != 2 or found[1] != width:
            return f"features has shape {found}, expected (N, {width}): the inputs of the head"
    return ""
