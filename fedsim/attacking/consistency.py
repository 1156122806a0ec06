"""Whether what a client revealed explains its update: its training is repeated and compared.

Attacks on another Flower project are scored against the examples that its clients revealed. If
these are not the ones that were trained on, or the loss is another one, a perfect attack scores
nothing, and nobody would notice. So the recorded steps are taken again from the arrays that the
client received, with the recorded optimizer, mode and state of the random generator.
"""

import dataclasses
import inspect
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd

from fedsim.attacking.accumulation import added, averaged, by_examples, divided, most_batches
from fedsim.attacking.unrepeatable import unrepeatable
from fedsim.attacking.utterances import undivided_loss
from fedsim.records import Truth
from fedsim.runs.truth import Seen, TruthFile
from fedsim.seeds import isolated
from fedsim.victim import Loss, load_arrays

LOG = logging.getLogger("flwr")  # the log of the server, in which an audit reports
EVERY = 10.0
"""Seconds between two lines on the progress of a replay."""

FITS = "fits"
TOLERANCE = 1e-2
"""Largest relative error of a layer's change that counts as the same training."""

COARSE = 3
"""Factor of `TOLERANCE` under autocast, and on devices that round otherwise than the CPU."""

ROUNDING = 16
"""Multiple of the rounding error of a layer's weights, relative to its change, that is allowed."""

RESOLVED = 4
"""A layer is compared if its change is this many times what rounding allows."""

REPLAYED = 1000
"""Batches that are replayed to name a misfit; further ways of training are not tried."""

PROXIMAL = (0, 2, 1)
"""Powers of the distances in a proximal term that are tried if the server sent its weight."""

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
        proximal: Power of the distances in FedProx's proximal term, of which the paper has squares
            and Flower's documentation plain ones; 0: there is no such term.
        shares: The weight of each batch's loss in a step, one of `fedsim.attacking.accumulation`.
    """

    words: str
    loss: Loss
    clip: float | None = None
    training: bool | None = None
    fewer: int = 0
    autocast: bool = False
    proximal: int = 0
    shares: Callable[[Sequence[int], int], list[float]] = averaged


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A recorded training: what was seen, its batches, and the arrays before and after it."""

    seen: Seen
    inputs: list[Tensor]
    labels: list[Tensor]
    rng: list[Tensor]
    before: Mapping[str, Tensor]
    after: Mapping[str, Tensor]

    def change(self, name: str) -> float:
        """The norm of an array's change."""
        return float((self.after[name].double() - self.before[name].double()).norm())

    def rounding(self, name: str) -> float:
        """The norm of what rounding of the weights may change, as they were received and sent."""
        eps = max(torch.finfo(one[name].dtype).eps for one in (self.before, self.after))
        return ROUNDING * eps * float(self.before[name].double().norm())


def consistency(
    file: TruthFile,
    before: Mapping[str, Tensor],
    make: Callable[[], nn.Module],
    loss: Loss,
    truth: Truth,
) -> str:
    """Compare a client's update with what its revealed examples give.

    A layer fits if the relative error of its change is below `TOLERANCE`, or below `ROUNDING` times
    the rounding error of its weights. The layers that change by more than rounding must have most
    of the change. If the training as it was seen does not fit, other ways are tried: gradient
    clipping, label smoothing, a loss that is summed (CTC: over labels), the other mode of the
    model, one step fewer, and autocast; fewer of them after many batches. Autocast fits if it
    halves the error of the whole model, to at most three times `TOLERANCE`.

    Args:
        file: What the client revealed, with the arrays that it sent before any defense.
        before: The arrays that it received, by name.
        make: Makes the model.
        loss: The loss that adversaries assume.
        truth: The examples in it, as far as their inputs and labels can be read.

    Returns:
        "fits"; "misfit: WHICH" with the way that fits, or "misfit: none of N ways"; or
        "not checked: WHY".
    """
    after = file.after
    if after and all(name in before and one.equal(before[name]) for name, one in after.items()):
        return "not checked: the client sent back the arrays that it received"
    if why := unrepeatable(file, truth):
        return f"not checked: {why}"
    kept = _Recorded(file.seen, file.inputs, file.labels, file.rng, before, file.after)
    with isolated(0, "consistency"):
        if why := _incomparable(kept, make()):
            return f"not checked: {why}"
        usual = [_Way("", loss, proximal=power) for power in PROXIMAL]
        usual = usual if file.seen.proximal_mu else usual[:1]
        if accumulated := most_batches(file.seen.ends) > 1:
            ways = (averaged, divided, by_examples)
            usual = [dataclasses.replace(one, shares=each) for one in usual for each in ways]
        if any(_fits(kept, make, way) for way in usual):
            return FITS
        if file.seen.wrapper:
            return f"not checked: the optimizer is wrapped by another one ({file.seen.wrapper})"
        others = _others(loss, file.seen, spoken=truth.sequences is not None)
        if accumulated:
            words = "losses of a step's batches added up, and not averaged"
            others.insert(0, _Way(words, loss, shares=added))
        others = others[: max(1, REPLAYED // max(1, len(kept.inputs), len(kept.seen.ends)))]
        for way in others:
            if _fits(kept, make, way):
                return f"misfit: {way.words}"
        if names := ", ".join(file.seen.others)[:200]:
            return f"not checked: the model also received what is not recorded ({names})"
    return f"misfit: none of {len(usual) + len(others)} ways of training fits"


def _incomparable(kept: _Recorded, module: nn.Module) -> str:
    """Why a repeated training would say nothing; "" if it does."""
    if not kept.after:
        return "the reply had no arrays of its own"
    drops = any(isinstance(one, _DropoutNd) and one.p for one in module.modules())
    if kept.seen.device != "cpu" and kept.seen.training and drops:
        return f"the model drops out at random on {kept.seen.device}, which cannot be repeated"
    names = [name for name, one in module.named_parameters() if one.requires_grad]
    shared = [name for name in names if name in kept.after and name in kept.before]
    for name in shared:
        for one in (kept.before[name], kept.after[name]):
            if not one.is_floating_point():
                return f"the array {name} has no floating-point numbers ({one.dtype})"
    changes = {name: kept.change(name) for name in shared}
    compared = [one for name, one in changes.items() if one > RESOLVED * kept.rounding(name)]
    # Biases alone would be too few: with a label of each class, theirs is the same for any labels.
    if sum(one**2 for one in compared) <= sum(one**2 for one in changes.values()) / 2:
        return "the change of most weights is within rounding"
    return ""


def _others(loss: Loss, seen: Seen, *, spoken: bool) -> list[_Way]:
    """The fixed list of ways that are tried when what was seen does not fit."""

    def smoothed(module: nn.Module, inputs: Tensor, target: Tensor, **more: Any) -> Tensor:
        return functional.cross_entropy(module(inputs), target, label_smoothing=0.1)

    def added(module: nn.Module, inputs: Tensor, target: Tensor, **more: Any) -> Tensor:
        return functional.cross_entropy(module(inputs), target, reduction="sum")

    mode = "evaluation" if seen.training else "training"
    found = [_Way(f"gradients clipped to norm {norm:g}", loss, clip=norm) for norm in CLIPS]
    if spoken:
        found.append(_Way("CTC not divided by the number of labels", undivided_loss))
    else:
        found.append(_Way("label smoothing of 0.1", smoothed))
        found.append(_Way("a loss summed over examples", added))
    found += [
        _Way(f"the model in {mode} mode", loss, training=not seen.training),
        _Way("autocast in bfloat16", loss, autocast=True),
    ]
    if seen.steps > 1:
        found.append(_Way("one step fewer", loss, fewer=1))
    return found


def _fits(kept: _Recorded, make: Callable[[], nn.Module], way: _Way) -> bool:
    """Whether a way of training gives the arrays that the client had in the end."""
    errors = _errors(kept, make, way)
    if not way.autocast:
        tolerance = TOLERANCE * (1 if kept.seen.device == "cpu" else COARSE)
        allowed = {name: max(tolerance * kept.change(name), kept.rounding(name)) for name in errors}
        return all(error <= allowed[name] for name, error in errors.items())
    # In bfloat16, gradients that are zero but for rounding have large relative errors. And what
    # differs by little in another way, such as mixed labels, does so without autocast as well.
    change = math.hypot(*(kept.change(name) for name in errors))
    usual = _errors(kept, make, dataclasses.replace(way, autocast=False))
    most = min(COARSE * TOLERANCE * change, math.hypot(*usual.values()) / 2)
    return math.hypot(*errors.values()) <= most


def _errors(kept: _Recorded, make: Callable[[], nn.Module], way: _Way) -> dict[str, float]:
    """The distance of each parameter from the client's, after a way of training, by name."""
    module = make()
    load_arrays(module, {k: v for k, v in kept.before.items() if k in module.state_dict()})
    _train(module, kept, way)
    return {
        name: float((ours.detach().double() - kept.after[name].double()).norm())
        for name, ours in module.named_parameters()
        if name in kept.after and name in kept.before
    }


def _train(module: nn.Module, kept: _Recorded, way: _Way) -> None:
    """Take the recorded steps."""
    seen = kept.seen
    if way.training is None:
        seen.set_mode(module)
    else:
        module.train(way.training)
    groups = (seen, *seen.more)
    names = dict(module.named_parameters())
    trained = {name for one in groups for name in one.trained}
    if names.keys() & trained:  # others were frozen
        for name, one in module.named_parameters(remove_duplicate=False):
            one.requires_grad_(one.requires_grad and name in trained)
    free = {name: one for name, one in names.items() if one.requires_grad}
    parameters = [*free.values()]
    optimizer = _optimizer(seen, free)
    start = [one.detach().clone() for one in parameters]
    first, said, most = 0, time.monotonic(), most_batches(seen.ends)
    for step, last in enumerate(seen.ends):
        if time.monotonic() - said >= EVERY:
            said = time.monotonic()
            where = f" with {way.words}" if way.words else ""
            LOG.info("fedsim: repeating a training%s: step %d of %d", where, step, len(seen.ends))
        if last > seen.ends[len(seen.ends) - 1 - way.fewer]:
            break
        places = range(first, last)

        def gradient(places: range = places) -> Tensor:
            optimizer.zero_grad()
            shares = way.shares([seen.sizes[place] for place in places], most)
            each = zip(places, shares, strict=True)
            values = [_backward(module, kept, place, way, share) for place, share in each]
            if way.proximal:
                _add_proximal(parameters, start, sum(shares) * seen.proximal_mu, way.proximal)
            if way.clip is not None:
                nn.utils.clip_grad_norm_(parameters, way.clip)
            return torch.stack(values).sum() if values else torch.zeros(())

        for group, was in zip(optimizer.param_groups, groups, strict=True):
            group.update({**was.changes.get(step, {}), "lr": was.rates[step]})
        if isinstance(optimizer, torch.optim.LBFGS):  # it asks for several gradients in a step
            optimizer.step(gradient)  # type: ignore[no-untyped-call]
        else:
            gradient()
            optimizer.step()
        first = last


def _add_proximal(
    parameters: list[nn.Parameter], start: list[Tensor], mu: float, power: int
) -> None:
    """Add the gradient of mu/2 times the sum of the parameters' distances from the start."""
    with torch.no_grad():
        for one, began in zip(parameters, start, strict=True):
            away = one - began
            term = mu * away if power == 2 else mu / 2 * functional.normalize(away.flatten(), dim=0)
            one.grad = term.view_as(one) if one.grad is None else one.grad + term.view_as(one)


def _optimizer(seen: Seen, free: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The recorded optimizer of parameters by name.

    A scheduler adds entries to its settings, which are none of it.
    """
    kind = getattr(torch.optim, seen.kind)
    takes = inspect.signature(kind).parameters
    first, *others = (
        {key: value for key, value in one.settings.items() if key in takes}
        for one in (seen, *seen.more)
    )
    elsewhere = {name for one in seen.more for name in one.trained}
    own = [one for name, one in free.items() if name not in elsewhere]
    groups: list[dict[str, Any]] = [{"params": own}]
    for one, settings in zip(seen.more, others, strict=True):
        held = [free[name] for name in one.trained if name in free]
        groups.append({"params": held, **settings})
    made: torch.optim.Optimizer = kind(groups, **first)
    return made


def _backward(module: nn.Module, kept: _Recorded, place: int, way: _Way, share: float) -> Tensor:
    """Add a share of a batch's gradient to that of the parameters; returns that of its loss."""
    torch.set_rng_state(kept.rng[place].clone())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way.autocast):
        value = share * way.loss(module, kept.inputs[place], kept.labels[place])
    value.backward()  # type: ignore[no-untyped-call]
    return value.detach()
