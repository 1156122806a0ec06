"""Whether what a client revealed explains its update: its training is repeated and compared.

Attacks on another Flower project are scored against the examples that its clients revealed. If
these are not the ones that were trained on, or the loss is another one, a perfect attack scores
nothing, and nobody would notice. So the recorded steps are taken again from the arrays that the
client received, with the recorded optimizer, mode and state of the random generator.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsim.runs.truth import TruthFile
from fedsim.seeds import isolated
from fedsim.victim import Loss, load_arrays

FITS = "fits"
TOLERANCE = 1e-2
"""Largest relative error of a layer's change that counts as the same training."""

ROUNDING = 16
"""Multiple of the rounding error of a layer's weights, relative to its change, that is allowed."""

CLIPS = (1.0, 0.5, 5.0, 10.0, 0.1)
"""Norms to which gradients are tried to be clipped."""


@dataclass(frozen=True, slots=True)
class _Way:
    """One way in which a client may have trained.

    Attributes:
        words: How it differs from what was seen.
        loss: The loss.
        clip: The norm that the gradient of a step is clipped to; None: it is not.
        training: Whether the model is in training mode; None: as it was seen.
        fewer: Steps left out in the end.
        autocast: Whether it runs under autocast in bfloat16.
    """

    words: str
    loss: Loss
    clip: float | None = None
    training: bool | None = None
    fewer: int = 0
    autocast: bool = False


def consistency(
    file: TruthFile, before: Mapping[str, Tensor], make: Callable[[], nn.Module], loss: Loss
) -> str:
    """Compare a client's update with what its revealed examples give.

    A layer fits if the relative error of its change is below `TOLERANCE`, or below `ROUNDING` times
    the rounding error of its weights; under autocast the whole model counts, with three times that
    error. If the training as it was seen does not fit, other ways are tried: gradient clipping,
    label smoothing, a loss that is summed, the other mode of the model, one step fewer, and
    autocast.

    Args:
        file: What the client revealed, with the arrays that it sent before any defense.
        before: The arrays that it received, by name.
        make: Makes the model.
        loss: The loss that adversaries assume.

    Returns:
        "fits"; "misfit: WHICH" with the way that fits, or "misfit: none of N ways"; or
        "not checked: WHY".
    """
    if why := _unchecked(file):
        return f"not checked: {why}"
    seen = _Way("", loss)
    with isolated(0, "consistency"):
        if _fits(file, before, make, seen):
            return FITS
        others = _others(loss, training=file.seen.training, steps=file.seen.steps)
        for way in others:
            if _fits(file, before, make, way):
                return f"misfit: {way.words}"
    return f"misfit: none of {1 + len(others)} ways of training fits"


def _unchecked(file: TruthFile) -> str:
    """Why a training cannot be repeated; "" if it can."""
    seen = file.seen
    if not file.after:
        return "the reply had no arrays of its own"
    if seen.partial or len(file.labels) < len(seen.sizes):
        return "inputs or labels are missing"
    if not seen.steps:
        return "no optimizer took a step: weights were changed by hand"
    if seen.optimizer == "several" or not hasattr(torch.optim, seen.kind):
        return f"the optimizer ({seen.optimizer}) is none of torch.optim"
    if seen.groups > 1:
        return "the optimizer has several groups of parameters"
    if seen.warm:
        return "the optimizer has state of earlier rounds"
    return ""


def _others(loss: Loss, *, training: bool, steps: int) -> list[_Way]:
    """The fixed list of ways that are tried when what was seen does not fit."""

    def smoothed(module: nn.Module, inputs: Tensor, target: Tensor, **more: Any) -> Tensor:
        return functional.cross_entropy(module(inputs), target, label_smoothing=0.1)

    def added(module: nn.Module, inputs: Tensor, target: Tensor, **more: Any) -> Tensor:
        return functional.cross_entropy(module(inputs), target, reduction="sum")

    mode = "evaluation" if training else "training"
    found = [_Way(f"gradients clipped to norm {norm:g}", loss, clip=norm) for norm in CLIPS]
    found += [
        _Way("label smoothing of 0.1", smoothed),
        _Way("a loss summed over examples", added),
        _Way(f"the model in {mode} mode", loss, training=not training),
        _Way("autocast in bfloat16", loss, autocast=True),
    ]
    if steps > 1:
        found.append(_Way("one step fewer", loss, fewer=1))
    return found


def _fits(
    file: TruthFile, before: Mapping[str, Tensor], make: Callable[[], nn.Module], way: _Way
) -> bool:
    """Whether a way of training gives the arrays that the client had in the end."""
    module = make()
    load_arrays(module, {k: v for k, v in before.items() if k in module.state_dict()})
    _train(module, file, way)
    errors, changes = list[float](), list[float]()
    for name, ours in module.named_parameters():
        if not ours.requires_grad or name not in file.after:
            continue
        start, theirs = before[name].double(), file.after[name].double()
        changes.append(float((theirs - start).norm()))
        errors.append(float((ours.detach().double() - theirs).norm()))
        rounding = ROUNDING * torch.finfo(ours.dtype).eps * float(start.norm())
        if not way.autocast and not errors[-1] <= max(TOLERANCE * changes[-1], rounding):
            return False
    # In bfloat16, gradients that are zero but for rounding have large relative errors.
    return not way.autocast or math.hypot(*errors) <= 3 * TOLERANCE * math.hypot(*changes)


def _train(module: nn.Module, file: TruthFile, way: _Way) -> None:
    """Take the recorded steps."""
    seen, parameters = file.seen, [p for p in module.parameters() if p.requires_grad]
    module.train(seen.training if way.training is None else way.training)
    optimizer = getattr(torch.optim, seen.kind)(parameters, **seen.settings)
    first = 0
    for last, lr in zip(seen.ends, seen.rates, strict=True):
        if last > seen.ends[len(seen.ends) - 1 - way.fewer]:
            break
        optimizer.zero_grad()
        for place in range(first, last):
            torch.set_rng_state(file.rng[place].clone())
            with _autocast(way.autocast):
                value = way.loss(module, file.inputs[place], file.labels[place])
            value.backward()  # type: ignore[no-untyped-call]
        if way.clip is not None:
            nn.utils.clip_grad_norm_(parameters, way.clip)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        first = last


@contextmanager
def _autocast(active: bool) -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=active):
        yield
