"""Does a plugin class keep its contract? `conformance` answers with a list of complaints."""

import re
import typing
from collections.abc import Sequence
from typing import Annotated, Any

from fedsim.adversary import Adversary
from fedsim.defense import Defense
from fedsim.knowledge import Knowledge
from fedsim.plugin import Plugin
from fedsim.records import Observation
from fedsim.testing.adversaries import CLAIMS, adversary_complaints
from fedsim.testing.defenses import defense_complaints
from fedsim.testing.watching import said

__all__ = ["conformance"]


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
            f"{cls.__name__}() fails ({said(error)}): give every setting a default, and implement "
            "every abstract method",
        ]
    if isinstance(plugin, Adversary):
        if complaints:
            return complaints
        found = adversary_complaints(plugin, sample)
        for setting, chosen in plugin.asking_more().items():
            found += [f"with {setting}: {one}" for one in adversary_complaints(chosen, sample)]
        return found
    return complaints + defense_complaints(plugin)


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
