"""Conformance check of plugin classes: declarations first, then behaviour on a sample."""

import re
import typing
from collections.abc import Sequence
from typing import Annotated, Any

from fedsim.adversary import PLANNED, Adversary
from fedsim.defense import Defense
from fedsim.described import description
from fedsim.knowledge import Knowledge
from fedsim.libraries import brief
from fedsim.metric import Metric
from fedsim.plugin import Plugin
from fedsim.records import CLAIMS, Observation
from fedsim.spec import Spec
from fedsim.task import Task
from fedsim.testing.adversaries import adversary_complaints
from fedsim.testing.defenses import defense_complaints
from fedsim.testing.metrics import metric_complaints, metric_declarations
from fedsim.testing.tasks import task_complaints

_SIGNS = r"[a-z0-9]+([-+*][a-z0-9]+)*[+*]?"


def conformance(cls: type, sample: Observation | Task | None = None) -> list[str]:
    """List what is wrong with the class of an adversary, defense, metric or task.

    It computes on the device of the environment's FEDSIM_TEST_DEVICE, or the CPU; metrics always
    have claims and truths on the CPU.

    Args:
        cls: The class.
        sample: What the plugin is tried on.
            For an adversary: an observation with everything granted. The default is
            `fedsim.testing.example()`; an adversary that does not suit images, or refuses these
            with a `ValueError`, is then checked for its declarations only.
            For a metric: a task that it suits. The default is the first installed task that it
            suits; a metric that suits none is checked for its declarations only.
            For a task: an instance with other settings than the defaults.

    Returns:
        One sentence for each complaint, with what to do about it; empty if nothing is wrong.
    """
    if not (isinstance(cls, type) and issubclass(cls, Adversary | Defense | Metric | Task)):
        return [
            f"{cls!r} is neither an Adversary nor a Defense, a Metric or a Task: derive from one"
        ]
    complaints = _declarations(cls)
    if complaints and issubclass(cls, Adversary | Metric):
        return complaints
    try:
        plugin = sample if issubclass(cls, Task) and isinstance(sample, cls) else cls()
    except Exception as error:
        return [
            *complaints,
            f"{cls.__name__}() fails ({brief(error)}): give every setting a default, and implement "
            "every abstract method",
        ]
    seen = sample if isinstance(sample, Observation) else None
    if isinstance(plugin, Adversary):
        found = adversary_complaints(plugin, seen)
        for setting, chosen in plugin.asking_more().items():
            found += [f"with {setting}: {one}" for one in adversary_complaints(chosen, seen)]
        return found
    if isinstance(plugin, Metric):
        return metric_complaints(plugin, sample if isinstance(sample, Task) else None)
    if isinstance(plugin, Task):
        return complaints + task_complaints(plugin)
    return complaints + defense_complaints(plugin)


def _declarations(cls: type[Plugin]) -> list[str]:
    found = []
    # Names of metrics are columns elsewhere: those of fedsim have underscores.
    signs = "[A-Za-z0-9]+([-_][A-Za-z0-9]+)*" if issubclass(cls, Metric) else _SIGNS
    if not re.fullmatch(signs, cls.name):
        found.append(f"name is {cls.name!r}: set the name it is registered under, like 'my-attack'")
    if not (cls.__dict__.get("__doc__") or "").strip():
        found.append("no docstring: say what leaks, from what, and under which assumptions")
    for name, field in cls.model_fields.items():
        if not description(cls, name):
            found.append(f"setting '{name}' has no description: write one below it, with units")
        if not _bounded(field.annotation, field.metadata):
            found.append(f"setting '{name}' is an unbounded number: Field(ge=..., le=...)")
    if issubclass(cls, Adversary):
        for name in sorted(PLANNED & cls.model_fields.keys()):
            found.append(
                f"setting '{name}' cannot be set: in a scenario, {name} says which attacks are "
                "made; give the setting another name"
            )
        if not isinstance(getattr(cls, "needs", None), Knowledge):
            found.append("needs is not declared: needs = Knowledge.GRADIENT | ...")
        recovers = getattr(cls, "recovers", None)
        if not isinstance(recovers, frozenset) or not recovers:
            found.append("recovers is not declared: recovers = frozenset({'labels', ...})")
        elif unknown := sorted(recovers - CLAIMS):
            found.append(
                f"recovers names {unknown}, which Reconstruction lacks: use {sorted(CLAIMS)}"
            )
        if not isinstance(cls.suits, tuple) or not all(
            isinstance(one, type) and issubclass(one, Spec) for one in cls.suits or (None,)
        ):
            found.append(f"suits is {cls.suits!r}: name classes of specs, like (ImageSpec,)")
        many = cls.reconstruct_many is not Adversary.reconstruct_many
        if many != (cls.group > 1):
            found.append(
                f"group is {cls.group}, and reconstruct_many is {'' if many else 'not '}overridden"
                ": override it and say how many victims it likes at once, or neither"
            )
    elif issubclass(cls, Metric):
        found += metric_declarations(cls)
    elif wrong := cls.mistake():
        found.append(wrong)
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
