"""The verdict on an attack from measurements, and the sentence that says it."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedsim.adversary import Adversary
from fedsim.knowledge import Knowledge
from fedsim.quantity import QUANTITIES, Value
from fedsim.requirement import Requirement

NAMED = 2
"""Number of unmet requirements that a sentence names."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is expected of an attack.

    Attributes:
        unmet: The requirements that do not hold, the most important first.
        unknown: Those that could not be measured.
        withheld: Names of knowledge that the attack needs and the threat model withholds.
        declared: Whether the adversary declares any requirement.
    """

    unmet: tuple[Requirement, ...] = ()
    unknown: tuple[Requirement, ...] = ()
    withheld: tuple[str, ...] = ()
    declared: bool = True

    @property
    def leaks(self) -> bool | None:
        """Whether the attack should find something; None if it declares no requirement."""
        if self.withheld or self.unmet:
            return False
        return True if self.declared else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Names of the withheld knowledge, and of the quantities beyond their bounds."""
        return (*self.withheld, *(one.quantity for one in self.unmet))

    @property
    def advice(self) -> str:
        """Which setting to try; "" if nothing is unmet."""
        if self.withheld:
            return f"threat.grants with {', '.join(self.withheld)}"
        return next((one.advice or one.of.advice for one in self.unmet), "")


def expect(adversary: Adversary, granted: Knowledge, values: Mapping[str, Value]) -> Verdict:
    """Say what is expected of an attack.

    Args:
        adversary: The adversary with its settings.
        granted: What the threat model grants.
        values: Measured values by the name of their quantity.
    """
    conditions = adversary.conditions()
    held = [(one, one.met(values.get(one.quantity))) for one in conditions]
    return Verdict(
        unmet=tuple(one for one, met in held if met is False),
        unknown=tuple(one for one, met in held if met is None),
        withheld=tuple((adversary.requires() & ~granted.closed()).names()),
        declared=bool(conditions),
    )


def setting(values: Mapping[str, Value]) -> str:
    """What was trained for an update, such as `80 examples in 10 local steps`."""
    shown = [
        QUANTITIES[name].describe(values[name])
        for name in ("examples", "steps")
        if values.get(name) is not None
    ]
    return " in ".join(shown) or "the setting"


def because(verdict: Verdict, values: Mapping[str, Value]) -> tuple[str, str]:
    """What was measured, and what the attack needs instead; nothing if nothing is missing.

    Args:
        verdict: What is expected of the attack.
        values: Measured values by the name of their quantity.
    """
    if verdict.withheld:
        return "", ", ".join(verdict.withheld)
    unmet = verdict.unmet[:NAMED]
    if unmet:
        seen = " and ".join(one.of.describe(values[one.quantity]) for one in unmet)
        return seen, " and ".join(dict.fromkeys(one.needed for one in unmet))
    holds = f"{setting(values)}, with all that it requires"
    if verdict.unknown:
        holds += f" as far as known (not known: {', '.join(o.quantity for o in verdict.unknown)})"
    return holds, ""


def sentence(
    label: str,
    verdict: Verdict,
    values: Mapping[str, Value],
    *,
    where: str = "",
    ended: str = "",
) -> str:
    """Say of one attack how it ended and why, and which setting to try.

    Args:
        label: The adversary's label.
        verdict: What is expected of it.
        values: Measured values by the name of their quantity.
        where: Such as ` in round 3`.
        ended: How the attack ended, such as `scored Label F1 25 %`; "" if it was not made.
    """
    seen, needs = because(verdict, values)
    if verdict.withheld:
        return (
            f"{label} is denied{where}: it needs {needs}, which threat.grants withholds; "
            f"try {verdict.advice}"
        )
    if verdict.leaks is None:
        ended = ended or "is not attacked yet"
        return f"{label} {ended}{where}; it declares no requirements that could say why"
    if verdict.leaks:
        return f"{label} {ended or 'is expected to leak'}{where}: {seen}"
    ended = ended or "is expected to find nothing"
    return f"{label} {ended}{where}: {seen}; it needs {needs}; try {verdict.advice}"
