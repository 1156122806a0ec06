"""Does a plugin class keep its contract? `conformance` answers with a list of complaints."""

import dataclasses
import random
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedsim.adversary import Adversary, Job
from fedsim.defense import Defense, MeanGradient, Training
from fedsim.errors import NotGranted
from fedsim.knowledge import Knowledge
from fedsim.plugin import Plugin
from fedsim.records import FIELDS, Batch, Kind, Observation, Reconstruction, Update
from fedsim.seeds import isolated, torch_generator
from fedsim.testing.examples import SPEC, batch, example, network
from fedsim.victim import VictimModel

__all__ = ["conformance"]

CLAIMS = {field.name for field in dataclasses.fields(Reconstruction)} - {"trace", "diagnostics"}
_FIELDS = {
    flag: FIELDS.get(str(flag.name).lower(), str(flag.name).lower())
    for flag in Knowledge
    if flag not in (Knowledge.GRADIENT, Knowledge.HEAD_GRADIENT)
}

BUDGET = 3
"""Iterations that an adversary gets here: enough to run through, too few to succeed."""


def conformance(cls: type, sample: Observation | None = None) -> list[str]:
    """What is wrong with an adversary or defense class; empty when nothing is.

    sample: what to attack, everything granted; without one `fedsim.testing.example()`, and an
    adversary that refuses images with a `ValueError` is then only checked for its declarations.
    """
    if not (isinstance(cls, type) and issubclass(cls, Adversary | Defense)):
        return [f"{cls!r} is neither an Adversary nor a Defense: derive from one of them"]
    complaints = _declarations(cls)
    try:
        plugin = cls()
    except Exception as error:
        return [
            *complaints,
            f"{cls.__name__}() fails ({_said(error)}): give every setting a default, and implement "
            "every abstract method",
        ]
    if isinstance(plugin, Adversary):
        if complaints:
            return complaints
        found = _adversary(plugin, sample)
        for setting, chosen in plugin.asking_more().items():
            found += [f"with {setting}: {one}" for one in _adversary(chosen, sample)]
        return found
    return complaints + _defense(plugin)


def _declarations(cls: type[Plugin]) -> list[str]:
    found = []
    if not re.fullmatch(r"[a-z0-9]+([-+*][a-z0-9]+)*[+*]?", cls.name):
        found.append(f"name is {cls.name!r}: set the name it is registered under, like 'my-attack'")
    if not (cls.__dict__.get("__doc__") or "").strip():
        found.append("no docstring: say what leaks, from what, and under which assumptions")
    for name, field in cls.model_fields.items():
        if not field.description:
            found.append(f"setting '{name}' has no description: Field(description=...), with units")
        if not _bounded(field.annotation, field.metadata):
            found.append(f"setting '{name}' is an unbounded number: Field(ge=..., le=...)")
    if issubclass(cls, Adversary):
        if not isinstance(getattr(cls, "needs", None), Knowledge):
            found.append("needs is not declared: needs = Knowledge.GRADIENT | ...")
        recovers = getattr(cls, "recovers", None)
        if not isinstance(recovers, frozenset) or not recovers:
            found.append("recovers is not declared: recovers = frozenset({'labels', ...})")
        elif unknown := sorted(recovers - CLAIMS):
            found.append(
                f"recovers names {unknown}, which Reconstruction lacks: use {sorted(CLAIMS)}"
            )
        many = cls.reconstruct_many is not Adversary.reconstruct_many
        if many != (cls.group > 1):
            found.append(
                f"group is {cls.group}, and reconstruct_many is {'' if many else 'not '}overridden"
                ": override it and say how many victims it likes at once, or neither"
            )
    elif issubclass(cls, Defense) and (
        cls.prepare is Defense.prepare and cls.protect is Defense.protect
    ):
        found.append("neither prepare nor protect is written: this defense does nothing")
    return found


def _bounded(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Whether every number in a setting's type has a bound on at least one side."""
    bounds = ("ge", "gt", "le", "lt")
    if any(getattr(entry, bound, None) is not None for entry in metadata for bound in bounds):
        return True
    if typing.get_origin(annotation) is Annotated:
        inner, *extra = typing.get_args(annotation)
        entries = [item for entry in extra for item in getattr(entry, "metadata", [entry])]
        return _bounded(inner, entries)
    return annotation not in (int, float) and all(
        _bounded(part, ()) for part in typing.get_args(annotation)
    )


def _adversary(attack: Adversary, sample: Observation | None) -> list[str]:
    blind = Observation(granted=Knowledge(0), spec=SPEC, head="head")
    found = []
    if dropped := (attack.needs & ~attack.requires()).names():
        found.append(
            f"requires() leaves out {', '.join(dropped)}, which `needs` names: start from "
            "super().requires()"
        )
    try:
        filled = attack.fills()
    except Exception as error:
        return [*found, f"fills() raises {_said(error)}: name fields whatever the settings"]
    if unknown := sorted(filled - CLAIMS):
        found.append(f"fills() names {unknown}, which Reconstruction lacks: use {sorted(CLAIMS)}")
    if left := sorted(attack.recovers - filled):
        found.append(f"fills() leaves out {left}, which `recovers` names: start from self.recovers")
    if attack.requires():
        try:
            _attack(attack, blind, 0)
        except (NotGranted, ValueError):
            pass
        except Exception as error:
            found.append(
                f"with nothing granted it raises {_said(error)}: read knowledge with "
                "seen.know(Knowledge.X), which raises NotGranted"
            )
        else:
            found.append("with nothing granted it claims something all the same: what from?")

    seen = sample if sample is not None else example()
    granted = attack.requires().closed()
    if any(getattr(seen, name) is None for flag, name in _FIELDS.items() if flag in granted):
        return found  # made for another kind of task than the sample's
    seen = dataclasses.replace(seen, granted=granted, **_withheld(seen, granted))
    before = _frozen(seen)
    try:
        first, touched = _attack(attack, seen, 0)
        second, _ = _attack(attack, seen, 1)
    except NotGranted as error:
        return [*found, f"it asks for more than it declares ({error}): add that to `needs`"]
    except ValueError as error:
        refused = f"it refuses the sample: {error}"
        return found if sample is None else [*found, refused]
    except Exception as error:
        return [*found, f"it raises {_said(error)} on a small network with one image"]
    if not isinstance(first, Reconstruction):
        return [*found, f"reconstruct returns {type(first).__name__}: return a Reconstruction"]
    for name in sorted(filled & CLAIMS):
        value = getattr(first, name)
        if value is None or (name == "attributes" and not value):
            says = "recovers" if name in attack.recovers else "fills()"
            found.append(f"{says} names '{name}', but the reconstruction leaves it empty")
    if not _same(before, _frozen(seen)):
        found.append("it changes the observation: work on copies (tensor.clone())")
    if touched:
        found.append(f"it draws from the global generator of {touched}: draw from job.rng")
    if not _same(_claim(first), _claim(second)):
        found.append("the same seed gives another answer: draw only from job.rng")
    return found


def _attack(attack: Adversary, seen: Observation, world: int) -> tuple[Any, str]:
    """One attack with seed 0, in a world of its own as to the global generators."""
    job = Job(torch_generator(0, "conformance"), budget=BUDGET)
    return _watched(lambda: attack.reconstruct(seen, job), world)


def _withheld(seen: Observation, granted: Knowledge) -> dict[str, Any]:
    """The observation's fields that must go when only this much is granted."""
    gone: dict[str, Any] = {name: None for flag, name in _FIELDS.items() if flag not in granted}
    if Knowledge.GRADIENT not in granted:
        shown = Knowledge.HEAD_GRADIENT in granted
        gone["gradient"] = {
            k: v for k, v in seen.gradient.items() if shown and k.startswith(f"{seen.head}.")
        }
    return gone


def _claim(claimed: Reconstruction) -> dict[str, Any]:
    return {name: getattr(claimed, name) for name in sorted(CLAIMS)}


def _defense(defense: Defense) -> list[str]:
    model, examples = network(), batch()
    gradient = {k: g.detach() for k, g in model.gradient(examples.inputs, examples.labels).items()}
    found = []
    kinds: tuple[Kind, ...] = ("gradient", "delta")
    for kind in kinds:
        update = Update(gradient, kind=kind, lr=0.1, num_examples=1)
        before = _frozen(update)

        def protect(update: Update = update) -> list[Update]:
            rng, state = torch_generator(0, "conformance"), dict[str, Tensor]()
            return [defense.protect(update, rng, state) for _ in range(2)]

        try:
            first, touched = _watched(protect, 0)
            second, _ = _watched(protect, 1)
        except Exception as error:
            found.append(f"protect raises {_said(error)} on a small {kind}")
            continue
        if not all(isinstance(one, Update) for one in first):
            found.append("protect does not return an Update: use update.replace(tensors=...)")
            continue
        try:
            first[0].check(gradient)
        except Exception as error:
            found.append(f"protect returns an update that a server refuses: {error}")
        if first[0].kind != kind:
            found.append(f"protect turns a {kind} into {first[0].kind}: leave the kind alone")
        if not _same(before, _frozen(update)):
            found.append("protect changes the update it is given: return a new one")
        if touched:
            found.append(f"protect draws from the global generator of {touched}: draw from rng")
        if not _same(first, second):
            found.append("protect gives another answer under the same seed: draw only from rng")
    return list(dict.fromkeys(found + _prepare(defense, model, examples)))


def _prepare(defense: Defense, model: VictimModel, examples: Batch) -> list[str]:
    def loss(module: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(module(batch.inputs), batch.labels)

    def run() -> Any:
        rng = torch_generator(0, "conformance")
        module = model.copy().module
        plain = MeanGradient(loss, frozenset(model.parameters()))
        training = Training(module, (examples,), loss, plain, "fedsgd", 0.1, 0.0, 0.0, rng)
        prepared = defense.prepare(training)
        if not isinstance(prepared, Training):
            return None
        return prepared.gradient(prepared.module, prepared.batches[0])[0]

    try:
        first, touched = _watched(run, 0)
        second, _ = _watched(run, 1)
    except Exception as error:
        return [f"prepare, or the gradient it returns, raises {_said(error)}"]
    if first is None:
        return ["prepare does not return a Training: use training.replace(...)"]
    found = []
    expected = {name: p.shape for name, p in model.parameters().items()}
    if {name: value.shape for name, value in first.items()} != expected:
        found.append("after prepare the gradient has other names or shapes than the model")
    # Dropout cannot be handed a generator; the client seeds the global one around training.
    if not touched and not _same(first, second):
        found.append("prepare gives another gradient under the same seed: draw from training.rng")
    return found


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _watched(call: Callable[[], Any], world: int) -> tuple[Any, str]:
    """What a call returns, and which global generators it drew from."""
    with isolated(world, "conformance", "world"):
        before = _generators()
        result = call()
        touched = [k for k, state in _generators().items() if not _same(state, before[k])]
    return result, ", ".join(touched)


def _generators() -> dict[str, Any]:
    return {
        "random": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.random.get_rng_state(),
    }


def _frozen(value: Any) -> Any:
    """A copy of everything in a record, to compare with later; a model is private, so left out."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, VictimModel):
        return None
    if isinstance(value, Mapping):
        return {key: _frozen(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_frozen(one) for one in value]
    if dataclasses.is_dataclass(value):
        return {f.name: _frozen(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def _same(ours: Any, theirs: Any) -> bool:
    """Equal all the way down; NaN equals NaN."""
    if isinstance(ours, Tensor | np.ndarray):
        a, b = torch.as_tensor(ours), torch.as_tensor(theirs)
        return a.shape == b.shape and torch.allclose(
            a.double(), b.double(), rtol=0, atol=0, equal_nan=True
        )
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if dataclasses.is_dataclass(ours):
        return _same(_frozen(ours), _frozen(theirs))
    return bool(ours == theirs) or (ours != ours and theirs != theirs)
