"""The verdict on an attack from measurements, and the sentence that says it."""

from collections.abc import Mapping, Sequence
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


def sentence(
    label: str,
    verdict: Verdict,
    values: Mapping[str, Value],
    *,
    where: str = "",
    found: bool | None = None,
) -> str:
    """Say why an attack leaks or not, and which setting to try.

    Args:
        label: The adversary's label.
        verdict: What is expected of it.
        values: Measured values by the name of their quantity.
        where: Such as ` in round 3`.
        found: Whether the attack leaked; None if it was not made.
    """
    if verdict.withheld:
        return (
            f"{label} is denied{where}: it needs {', '.join(verdict.withheld)}, which "
            f"threat.grants withholds; try {verdict.advice}"
        )
    does = {True: "leaks", False: "found nothing", None: "is not attacked yet"}[found]
    if verdict.leaks is None:
        return f"{label} {does}{where}; it declares no requirements that could say why"
    unmet = verdict.unmet[:NAMED]
    if not unmet:
        holds = f"{setting(values)}, with all that it requires"
        if verdict.unknown:
            names = ", ".join(one.quantity for one in verdict.unknown)
            holds += f" as far as known (not known: {names})"
        if found is None:
            return f"{label} is expected to leak{where}: {holds}"
        if found:
            return f"{label} leaks{where}: {holds}"
        return f"{label} {does}{where} in {holds}; try more iterations or another adversary"
    seen = " and ".join(one.of.describe(values[one.quantity]) for one in unmet)
    needs = " and ".join(dict.fromkeys(one.needed for one in unmet))
    tail = f"it needs {needs}; try {verdict.advice}"
    if found:
        return f"{label} leaks{where}, in spite of {seen}: as a rule {tail}"
    if found is None:
        does = "is expected to find nothing"
    return f"{label} {does}{where}: {seen}; {tail}"


def rounds_text(rounds: Sequence[int]) -> str:
    """Rounds in words, such as ` in round 3` or ` in rounds 1 to 9`."""
    if rounds[0] == rounds[-1]:
        return f" in round {rounds[0]}"
    return f" in rounds {rounds[0]} to {rounds[-1]}"
