"""What an attack claims of a victim's examples, as a file of tensors.

The file is `reconstruction.safetensors` in the attack's folder of artifacts. It has all claimed
examples, in the order and the dtypes in which the attack claims them; the pictures and texts beside
it show some of them, matched to the originals. It holds nothing of the originals.

Keys, each only where it was claimed, for N examples:

    inputs        (N, ...)       tokens        (N, L) int64       sequences     (N, L) int64
    labels        (N,) int64     label_scores  (classes,)      features      (N, d)

Where the examples differ in shape, each is a tensor of its own: `inputs.0`, `inputs.1`, ...
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedsim.errors import RunFolderError
from fedsim.records import Reconstruction

EXAMPLES = ("inputs", "tokens", "sequences")
"""Fields of `Reconstruction` with a tensor for each example."""

WHOLE = ("labels", "label_scores", "features")
"""Fields that are one tensor."""


def to_bytes(claimed: Reconstruction) -> bytes | None:
    """Convert a reconstruction to the content of its file.

    Returns:
        The content; None if labels alone are claimed, or nothing.
    """
    found: dict[str, Tensor] = {}
    for name in EXAMPLES:
        claims = getattr(claimed, name)
        if claims is not None and len(claims):
            found |= _named(name, [_plain(one) for one in claims])
    if not found and claimed.features is None:
        return None
    for name in WHOLE:
        value = getattr(claimed, name)
        if value is not None:
            found[name] = _plain(value)
    return save(found)


def from_file(path: Path) -> Reconstruction:
    """Read the file of a reconstruction.

    Args:
        path: The file. It may come from someone else: keys that are not listed above are ignored.

    Returns:
        The claim, with the fields that the file has.

    Raises:
        RunFolderError: The file cannot be read.
    """
    try:
        stored = load(path.read_bytes())
    except (OSError, SafetensorError, KeyError) as error:  # KeyError: a dtype that torch lacks
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    fields: dict[str, Any] = {name: _examples(stored, name) for name in EXAMPLES}
    fields |= {name: stored.get(name) for name in WHOLE}
    return Reconstruction(**fields)


def _plain(value: Tensor) -> Tensor:
    """A tensor that shares no memory with others, as safetensors requires."""
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _named(name: str, examples: Sequence[Tensor]) -> dict[str, Tensor]:
    if len({(one.shape, one.dtype) for one in examples}) == 1:
        return {name: torch.stack(list(examples))}
    return {f"{name}.{number}": one for number, one in enumerate(examples)}


def _examples(stored: dict[str, Tensor], name: str) -> list[Tensor] | None:
    whole = stored.get(name)
    if whole is not None:
        return list(whole) if whole.dim() else None
    found = {
        int(key.rpartition(".")[2]): value
        for key, value in stored.items()
        if re.fullmatch(rf"{name}\.\d{{1,9}}", key)
    }
    return [found[number] for number in sorted(found)] or None
