"""What an attack depends on, so that what is done is not done twice and an edit is not missed."""

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from fedsim import __version__, metrics
from fedsim.adversary import Adversary
from fedsim.attacking.scoring import Attack
from fedsim.errors import RunFolderError
from fedsim.isolation import IsolatedAdversary
from fedsim.isolation.facts import parts_of, settings_of, source_digest
from fedsim.records import Interception
from fedsim.runs.ledger import Ledger
from fedsim.runs.stored import StoredTensors
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.devices import device_of


def plans(built: BuiltRun, point: str) -> dict[str, dict[str, Any]]:
    """What the attacks of each adversary depend on, apart from the interceptions.

    Returns:
        By label: the adversary's name, its settings and those of its parts, the digest of the
        source of their modules, budget, granted knowledge, seeds of the run and of attacks, kind of
        device, names of the metrics, and the version of fedsim.
    """
    scenario, found = built.scenario, {}
    for label, plan, adversary in built.adversaries:
        settings, source = _identity(adversary)
        try:
            fields = adversary.fills()
        except Exception:  # its attacks fail, and say so
            fields = adversary.recovers
        measured = metrics.applicable(fields, built.task.spec, built.metrics)
        plain = {
            "point": point,
            "label": label,
            "name": plan.name,
            "settings": settings,
            "source": source,
            "budget": plan.budget,
            "grants": sorted(map(str, built.threat.granted.names())),
            "seed": scenario.seed,  # of the baselines
            "threat.seed": scenario.threat.seed,
            "device": device_of(scenario.engine, "attack").type,
            "metrics": sorted(metric.name for metric in measured),
            "fedsim": __version__,
        }
        found[label] = json.loads(json.dumps(plain, default=str))
    return found


def _identity(adversary: Adversary) -> tuple[list[dict[str, Any]], str]:
    """The settings of an adversary and of those that it runs first, and their sources' digest."""
    if isinstance(adversary, IsolatedAdversary):
        return adversary.facts.settings, adversary.facts.source
    parts = parts_of(adversary)
    return settings_of(parts), source_digest(parts)


def seen(attack: Attack) -> tuple[str, ...]:
    """The digests of the interception and the history that an attack is shown, "" if unknown.

    For a probe, its number and batch size follow the digest of its model: they are known without a
    recording.
    """
    one = attack.interception
    digests = tuple(map(_digest, (one, *attack.history)))
    return (*digests, repr(one.probe)) if one.probe else digests


def _digest(one: Interception) -> str:
    parts = (one.before,) if one.probe else (one.before, one.update.tensors)
    digests = [part.digest for part in parts if isinstance(part, StoredTensors)]
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""


def settle(
    ledger: Ledger, planned: Mapping[str, Mapping[str, Any]], *, overwrite: bool
) -> set[tuple[str, str]]:
    """Compare adversaries with those that attacked earlier under the same labels.

    Args:
        ledger: The run folder.
        planned: The plans of one point by label, see `plans`.
        overwrite: Whether the attacks of another adversary under the same label are dropped.

    Returns:
        The points and labels whose earlier attacks do not count: they are overwritten, or metrics
        are measured now that were not.

    Raises:
        RunFolderError: The run has attacks of another adversary under a label.
    """
    complaints, dropped = [], set()
    for label, plan in planned.items():
        for digest in ledger.attacks.plans_of(plan["point"], label):
            before = ledger.attacks.plans.get(digest, {})
            differing = sorted(k for k in plan if plan[k] != before.get(k))
            if differing and (overwrite or differing == ["metrics"]):
                dropped.add((plan["point"], label))
            elif differing:
                reasons = "; ".join(_difference(key, before, plan) for key in differing)
                complaints.append(
                    f"{label}: this run has rows of another {label}, which differs in {reasons}"
                )
    if complaints:
        raise RunFolderError(
            "\n".join(dict.fromkeys(complaints))
            + "\nGive the adversary a label of its own, or --overwrite to drop the rows of the "
            "earlier one"
        )
    return dropped


def forget(ledger: Ledger, dropped: Collection[tuple[str, str]]) -> None:
    """Drop the attacks, with their rows, of points and labels that `settle` returned."""
    if dropped:
        ledger.drop(lambda point, victim, label: (point, label) in dropped)


def _difference(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if key == "source":
        return "the source of its modules"
    if key != "settings":
        return f"{key} ({before.get(key)}, now {now[key]})"
    changed = [
        f"{name} ({old.get(name)}, now {new.get(name)})"
        for old, new in zip(before.get(key, []), now[key], strict=False)
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]
    return "settings: " + (", ".join(changed) or "those of its parts")
