"""Adversaries whose code runs in a process of its own, with files, network and truth out of reach.

In the process of the run stands an `IsolatedAdversary`, which knows the adversary's declarations
and sends each call to a child of the server of `fedsim.isolation.process`.
"""

import functools
import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import torch
from pydantic import PrivateAttr

from fedsim import plugin, seeds
from fedsim.adversary import Adversary
from fedsim.errors import PluginError, encodable
from fedsim.isolation import claims, process
from fedsim.isolation.calls import DESCRIBES_WITHIN, MEMORY_MB, IsolatedFailure, KeptChild, asked
from fedsim.isolation.child import Call, Given, JobGiven
from fedsim.isolation.facts import Facts, lineage
from fedsim.isolation.sending import named
from fedsim.job import Job
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.references import is_reference, search_folders
from fedsim.requirement import Requirement
from fedsim.spec import Spec
from fedsim.victim import VictimModel

Isolation = Literal["auto", "process", "none"]
"""The setting `threat.isolation`."""


MOST_CAUTIONS = 20
"""The largest number of warnings about a model that are shown."""

MOST_ITERATIONS = 10**12
"""The largest number of iterations that is noted; a table's column holds 64-bit integers."""

SCRIPT = "__main__:"
"""Beginning of references to code of the running script or notebook."""


class IsolatedAdversary(Adversary):
    """An adversary of which this process knows the declarations, not the code."""

    needs: ClassVar[Knowledge] = Knowledge(0)
    recovers: ClassVar[frozenset[str]] = frozenset()
    lineages: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Names of the classes of modalities that it attacks, each with its base classes."""

    _given: Given = PrivateAttr()
    _facts: Facts = PrivateAttr()
    _memory_mb: int = PrivateAttr(default=MEMORY_MB)
    _kept: KeptChild | None = PrivateAttr(default=None)

    @property
    def facts(self) -> Facts:
        """The adversary's declarations."""
        return self._facts

    def get_ready(self) -> None:
        """Let the process that will fork for its attacks import what they use."""
        process.server().get_ready()

    @property
    def walls(self) -> tuple[str, ...]:
        """The walls that stand around it, in words."""
        return process.server().walls

    def fills(self) -> frozenset[str]:
        """Return the fields of `Reconstruction` that it fills."""
        if self._facts.fails:
            raise IsolatedFailure(self._facts.fails)
        return frozenset(self._facts.fills)

    def requires(self) -> Knowledge:
        """Return the knowledge that it needs with its settings."""
        return _knowledge(self._facts.required)

    def conditions(self) -> tuple[Requirement, ...]:
        """Return its requirements."""
        return tuple(
            Requirement(quantity, why, most, tuple(only), advice)
            for quantity, why, most, only, advice in self._facts.conditions
        )

    def cautions(self, model: VictimModel) -> list[str]:
        """Return its warnings about a model."""
        if not self._facts.cautious:
            return []
        try:
            content = asked(Call("cautions", self._given, (model,)), DESCRIBES_WITHIN)
        except IsolatedFailure as error:
            raise PluginError(f"{self.name}: its method `cautions` failed: {error}") from error
        try:
            found = list(json.loads(content))[:MOST_CAUTIONS]
        except (ValueError, TypeError, RecursionError) as error:
            raise PluginError(f"its warnings cannot be read: {error}") from error
        return [encodable(str(one)[:2000]) for one in found]

    @classmethod
    def attacks(cls, kind: type[Spec]) -> bool:
        """Return whether it attacks tasks of a modality, as the base class does, by names."""
        theirs = lineage(kind)
        return any(own[0] in theirs or theirs[0] in own for own in cls.lineages)

    def parts(self, where: str = "") -> dict[str, Adversary]:
        """Return the declarations of the adversaries that it runs first."""
        return {
            setting: _declaring(facts, self._given, self._memory_mb)
            for setting, facts in self._facts.parts.items()
        }

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Attack one observation."""
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        """Attack several observations of one round in one process."""
        limit = jobs[0].limit
        call = Call(
            "attack",
            self._given,
            (tuple(seen),),
            tuple(_sent(job, self._memory_mb) for job in jobs),
            deterministic=seeds.is_deterministic(),
            dtype=torch.get_default_dtype(),
        )
        on_gpu = jobs[0].device.type == "cuda"
        if on_gpu and self._kept is None:
            self._kept = KeptChild()
        content = asked(
            call,
            limit,
            memory=None if on_gpu else self._memory_mb * 2**20,
            progress=lambda report: _follow(jobs, report),
            kept=self._kept,
        )
        try:
            return claims.from_bytes(content)
        except claims.InvalidClaim as error:
            raise IsolatedFailure(f"its claim cannot be read: {error}") from error


def isolates(isolation: Isolation, name: str, settings: Mapping[str, Any]) -> bool:
    """Whether an adversary runs in a process of its own.

    Args:
        isolation: The setting `threat.isolation`; "auto": what is not built in does, unless it is
            code of the running script, which runs here anyway.
        name: The adversary's name.
        settings: Its settings, which may name adversaries that it runs first.
    """
    if isolation != "auto":
        return isolation == "process"
    return not all(
        plugin.is_built_in("adversaries", one) or one.startswith(SCRIPT)
        for one in named(name, settings)
    )


def walls_around(
    planned: Iterable[tuple[str, Any, Adversary]], device: torch.device
) -> dict[str, str]:
    """The walls around adversaries, such as "process: memory, time, files" or "none".

    Args:
        planned: Adversaries as a scenario makes them; the first value is the label.
        device: Where attacks compute. On a GPU the memory of a process is not limited.

    Returns:
        The walls by label.
    """
    found = {}
    for label, _, one in planned:
        found[label] = "none"
        if isinstance(one, IsolatedAdversary):
            walls = [wall for wall in one.walls if wall != "memory" or device.type != "cuda"]
            found[label] = f"process: {', '.join(walls)}"
    return found


def isolated(
    name: str, settings: Mapping[str, Any], where: str = "", *, memory_mb: int = MEMORY_MB
) -> IsolatedAdversary:
    """Make an adversary whose module is not imported by this process.

    Args:
        name: The registered name, or a reference.
        settings: Its settings.
        where: Place of the settings in the scenario, for messages.
        memory_mb: Memory of an attack in MiB, beyond what it is shown.

    Raises:
        PluginError: There is no such adversary, or several, or it cannot be imported behind the
            walls.
        ScenarioError: A setting is unknown, missing or invalid.
    """
    if name.startswith(SCRIPT):
        here = cast(Adversary, plugin.make("adversaries", name, dict(settings), where))
        return wrapped(here, memory_mb=memory_mb)
    if not is_reference(name):
        plugin.check_registered("adversaries", name)
    return _made((name, dict(settings), where), memory_mb)


def wrapped(adversary: Adversary, *, memory_mb: int = MEMORY_MB) -> IsolatedAdversary:
    """Make an adversary that exists in this process attack in one of its own.

    Args:
        adversary: The adversary, which is sent with its class if no module has it.
        memory_mb: Memory of an attack in MiB, beyond what it is shown.
    """
    if isinstance(adversary, IsolatedAdversary):
        return adversary
    return _made(adversary, memory_mb)


def _made(given: Given, memory_mb: int) -> IsolatedAdversary:
    return _declaring(_facts(given), given, memory_mb)


def _declaring(facts: Facts, given: Given, memory_mb: int) -> IsolatedAdversary:
    """An adversary of a class of its own, which has the declarations."""
    lineages = tuple(tuple(names) for _, names in facts.suits)
    every = any(names[0] == lineage(Spec)[0] for names in lineages)
    words = " or ".join(modality for modality, _ in facts.suits)
    declared = {
        "__doc__": facts.summary,
        "name": facts.declared,
        "needs": _knowledge(facts.needs),
        "recovers": frozenset(facts.recovers),
        "group": facts.group,
        "over_history": facts.over_history,
        "suits": (Spec,) if every else (type("Spec", (Spec,), {"modality": words}),),
        "lineages": lineages,
    }
    kind = type("IsolatedAdversary", (IsolatedAdversary,), {"__module__": __name__, **declared})
    made: IsolatedAdversary = kind()
    made._given, made._facts, made._memory_mb = given, facts, memory_mb
    return made


_KNOWN: dict[str, Facts] = {}
"""Facts by what they are of; they hold until one of the source files changes."""


def _facts(given: Given) -> Facts:
    if isinstance(given, Adversary):
        return _described(given)
    name, settings, _ = given
    about = [name, settings, search_folders(), plugin.registered("adversaries")]
    key = json.dumps(about, default=str)
    known = _KNOWN.get(key)
    if known is None or any(_changed(*file) for file in known.files.items()):
        known = _KNOWN[key] = _described(given)
    return known


def _described(given: Given) -> Facts:
    try:
        content = asked(Call("facts", given), DESCRIBES_WITHIN)
    except IsolatedFailure as error:
        name = type(given).__name__ if isinstance(given, Adversary) else given[0]
        raise PluginError(
            f"{name} cannot be used: {error}. `fedsim check module:Class` says what is wrong"
        ) from None
    try:
        return Facts.model_validate_json(content)
    except ValueError as error:
        raise PluginError(f"what its process says of it cannot be read: {error}") from error


def _changed(file: str, modified: int) -> bool:
    try:
        return Path(file).stat().st_mtime_ns != modified
    except (OSError, ValueError):  # gone, or no path
        return True


def _sent(job: Job, memory_mb: int) -> JobGiven:
    seed, state = job.rng.initial_seed(), job.rng.get_state()
    narrow = torch.Generator().manual_seed(seed).get_state()
    return JobGiven(
        seed,
        not torch.equal(state, narrow),
        state,
        str(job.device),
        job.budget,
        None if math.isinf(job.limit) else job.limit,
        job.compiled,
        float(memory_mb),
    )


def _follow(jobs: Sequence[Job], report: bytes) -> None:
    """Note a child's progress in the jobs of this process; whatever else it sends is left out."""
    with suppress(ValueError, TypeError, IndexError, OverflowError, RecursionError):
        number, *counts, objective = json.loads(report)
        iterations, planned, step = (0 if one is None else int(one) for one in counts)
        if not all(0 <= one <= MOST_ITERATIONS for one in (iterations, planned, step)):
            return
        job = jobs[int(number)]
        job.iterations, job.planned = iterations, planned
        if objective is not None:
            job.trace[:] = [(step, float(objective))]


def _knowledge(names: Sequence[str]) -> Knowledge:
    try:
        return functools.reduce(operator.or_, (Knowledge[name] for name in names), Knowledge(0))
    except KeyError as error:
        raise PluginError(f"it needs {error.args[0]!r}, which is no knowledge") from error
