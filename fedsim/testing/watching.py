"""Check that calls are pure: what they return, change and draw from global generators."""

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedsim.seeds import isolated
from fedsim.victim import VictimModel


def watched(call: Callable[[], Any], world: int) -> tuple[Any, str]:
    """Call a function and find the global random generators that it draws from.

    Args:
        call: The function.
        world: Seeds the global generators around the call.

    Returns:
        What the call returned, and the names of the generators, separated by commas.
    """
    with isolated(world, "conformance", "world"):
        before = _generators()
        result = call()
        touched = [k for k, state in _generators().items() if not same(state, before[k])]
    return result, ", ".join(touched)


def _generators() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.random.get_rng_state(),
    }


def frozen(value: Any) -> Any:
    """Copy a record with everything in it, for a later comparison; models are left out."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, VictimModel):
        return None
    if isinstance(value, Mapping):
        return {key: frozen(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {f.name: frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def same(ours: Any, theirs: Any, tolerance: float = 0.0) -> bool:
    """Whether two nested records are equal; NaN equals NaN.

    Args:
        ours: A record.
        theirs: Another one.
        tolerance: How far numbers may differ, absolutely and in relation to their size.
    """

    def alike(one: Any, other: Any) -> bool:
        return same(one, other, tolerance)

    if ours is None or theirs is None:
        return ours is theirs
    numbers = isinstance(ours, float) and isinstance(theirs, int | float)
    if numbers or isinstance(ours, Tensor | np.ndarray):
        a, b = torch.as_tensor(ours).double(), torch.as_tensor(theirs).double()
        return a.shape == b.shape and torch.allclose(
            a, b, rtol=tolerance, atol=tolerance, equal_nan=True
        )
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(alike(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(alike, ours, theirs))
    if dataclasses.is_dataclass(ours):
        return alike(frozen(ours), frozen(theirs))
    return bool(ours == theirs)
