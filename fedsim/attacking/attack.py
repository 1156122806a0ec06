"""One attack: run an adversary on an observation, score and render its reconstruction.

The truth is derived here, after the attack, and never reaches the adversary.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedsim import metrics
from fedsim.adversary import Adversary, Job
from fedsim.attacking.alarm import Alarm, alarm
from fedsim.attacking.diagnostics import as_json
from fedsim.attacking.progress import AttackProgress, progress
from fedsim.errors import AttackTimeout, NotGranted
from fedsim.knowledge import Knowledge
from fedsim.plugin import title
from fedsim.records import Finding, Interception, Observation, Reconstruction, Status, Truth
from fedsim.runs.ledger import place
from fedsim.scenario.built import BuiltRun
from fedsim.seeds import derive, isolated, torch_generator

__all__ = ["Attack", "AttackRunner", "Bench", "GroupFailed", "Outcome", "one_by_one"]

REMEMBERED = 10_000
"""The number of baselines that a runner caches."""


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """One adversary against one victim.

    Attributes:
        interception: The victim's update.
        adversary: The adversary's place in the scenario.
        inclusion: The probability with which the victim was chosen.
        refused: Why the update cannot be attacked, "" if it can.
        history: Earlier interceptions of the victim, for `HISTORY`.
        caution: A warning for the user when the attack has ended.
    """

    interception: Interception
    adversary: int
    inclusion: float
    refused: str = ""
    history: tuple[Interception, ...] = ()
    caution: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of an attack.

    Attributes:
        round: The round of its victim.
        findings: Rows of the run's table.
        files: Contents by path in the run folder.
        caution: A warning for the user.
        diagnostics: The adversary's diagnostics as JSON values.
    """

    round: int
    findings: tuple[Finding, ...]
    files: Mapping[str, bytes]
    caution: str = ""
    diagnostics: Mapping[str, Any] = field(default_factory=dict)


class GroupFailed(Exception):
    """A group of attacks failed as a whole. The argument is the reason, "" if it was denied."""


def one_by_one(group: Sequence[Attack], why: str) -> list[list[Attack]]:
    """Split a failed group into single attacks; the first carries the reason as its caution."""
    first, *rest = group
    text = ""
    if why:
        text = f"{len(group)} attacks together failed, and are made one by one: {why}"
    return [[replace(first, caution=text)], *([one] for one in rest)]


class AttackRunner:
    """Runs and scores the attacks of a run, in any process.

    Attributes:
        built: The scenario's task and plugins.
        point: The name of the sweep's point, "" without a sweep.
        batch_size_stated: Whether the scenario states the clients' batch size. If not, the number
            of examples in the truth is taken from the update.
    """

    def __init__(self, built: BuiltRun, point: str = "", *, batch_size_stated: bool = True) -> None:
        self.built, self.point = built, point
        self.batch_size_stated = batch_size_stated
        self.scenario, self.task = built.scenario, built.task
        self.adversaries, self.threat = built.adversaries, built.threat
        self._chances: dict[tuple[str, str], tuple[float | None, float | None]] = {}
        self._running: tuple[str, Sequence[Job]] = ("", ())

    def warm(self) -> None:
        """Load data and model, so that this does not count as time of the first attack."""
        self.task.num_examples(0)
        self.task.victim({})

    def groups(self, attacks: Sequence[Attack]) -> list[list[Attack]]:
        """Put the attacks of a round into groups, each of one adversary.

        A group is as large as the adversary's `group`, whatever the number of workers: results
        depend on the size by rounding, and are the same on every engine. Attacks that are refused
        form groups of their own.
        """
        found: list[list[Attack]] = []
        for index, (_, _, adversary) in enumerate(self.adversaries):
            mine = [one for one in attacks if one.adversary == index]
            found += [[one] for one in mine if one.refused]
            sound = [one for one in mine if not one.refused]
            size = adversary.group
            found += [sound[at : at + size] for at in range(0, len(sound), size)]
        return found

    def limit(self, attacks: Sequence[Attack]) -> float:
        """The time limit in seconds for a group of attacks of one adversary."""
        _, plan, _ = self.adversaries[attacks[0].adversary]
        return len(attacks) * (plan.timeout or self.scenario.threat.timeout)

    def progress(self) -> AttackProgress | None:
        """The progress of the attacks that run now; for another thread."""
        return progress(*self._running)

    def perform(self, attack: Attack) -> Outcome:
        """Attack, score and render. There is a row whatever the adversary does."""
        call, claimed = _Call(), Reconstruction()
        status: Status = "failed" if attack.refused else "ok"
        error = attack.refused
        if not attack.refused:
            try:
                (claimed,) = self._claims([attack], call)
            except _ENDINGS as reason:
                status, error = _ending(reason)
        iterations = sum(job.iterations for job in call.jobs)
        return self._score(attack, claimed, status, error, call.seconds, iterations)

    def perform_together(self, attacks: Sequence[Attack]) -> list[Outcome]:
        """Attack several victims of a round in one call of their adversary.

        The seconds of each attack are those of the call over their number.

        Raises:
            GroupFailed: The call raised, took too long, or did not return a reconstruction for
                each. Whose fault that is shows when they are performed one by one.
        """
        if len(attacks) == 1:
            return [self.perform(attacks[0])]
        call = _Call()
        try:
            claims = self._claims(attacks, call)
        except _ENDINGS as reason:
            status, error = _ending(reason)
            raise GroupFailed("" if status == "denied" else error) from None
        seconds = call.seconds / len(attacks)
        return [
            self._score(attack, claimed, "ok", "", seconds, job.iterations)
            for attack, claimed, job in zip(attacks, claims, call.jobs, strict=True)
        ]

    def _claims(self, attacks: Sequence[Attack], call: "_Call") -> list[Reconstruction]:
        """Call the adversary on one or several victims; raises what it raises."""
        label, _, adversary = self.adversaries[attacks[0].adversary]
        limit, alone = self.limit(attacks), len(attacks) == 1
        try:
            with isolated(*self._place(attacks[0])):
                seen = [self._observe(adversary, attack) for attack in attacks]
                call.jobs = [self._job(attack, limit) for attack in attacks]
                self._running = (label, call.jobs)
                call.started = time.perf_counter()
                with alarm(limit):
                    if alone:
                        claims = [adversary.reconstruct(seen[0], call.jobs[0])]
                    else:
                        claims = list(adversary.reconstruct_many(seen, call.jobs))
        finally:
            self._running = ("", ())
        method = "reconstruct" if alone else "reconstruct_many"
        if len(claims) != len(attacks):
            raise TypeError(f"{method} returned {len(claims)} claims")
        for claimed in claims:
            if not isinstance(claimed, Reconstruction):
                found = type(claimed).__name__
                raise TypeError(f"{method} returned {found}, expected a Reconstruction")
        return claims

    def _place(self, attack: Attack) -> tuple[Any, ...]:
        """The arguments that seed an attack's random numbers: seed, purpose, round, clients."""
        label, _, _ = self.adversaries[attack.adversary]
        interception = attack.interception
        return (self.scenario.seed, f"attack.{label}", interception.round, *interception.clients)

    def _job(self, attack: Attack, limit: float) -> Job:
        _, plan, _ = self.adversaries[attack.adversary]
        return Job(
            torch_generator(*self._place(attack)),
            device=_device(self.scenario.engine.gpus_per_attack),
            budget=plan.budget,
            deadline=limit,
        )

    def _observe(self, adversary: Adversary, attack: Attack) -> Observation:
        missing = adversary.requires() & ~self.threat.granted.closed()
        if missing:
            raise NotGranted(
                f"it needs {', '.join(missing.names())}, which threat.grants withholds"
            )
        interception = attack.interception
        given = Knowledge.LABELS | Knowledge.LENGTHS
        run = [
            one.name for one in self.built.defenses if any(map(one.guards, interception.clients))
        ]
        threat = replace(self.threat, defenses=tuple(run))
        return threat.observe(
            interception,
            truth=self._truth(interception) if threat.granted & given else None,
            history=[threat.observe(earlier) for earlier in attack.history],
        )

    def _truth(self, interception: Interception) -> Any:
        settings = self.scenario.training
        size, steps = settings.batch_size, settings.local_steps
        if not self.batch_size_stated:
            size = max(1, interception.update.num_examples // steps)
        return self.task.truth(
            interception.clients, interception.round, batch_size=size, steps=steps
        )

    def _baselines(
        self, metric: metrics.Metric, truth: Truth, interception: Interception, guess: metrics.Guess
    ) -> tuple[float | None, float | None]:
        """`metrics.baselines`, computed once a victim, as they are the same for all attacks."""
        key = (interception.victim, metric.name)
        if key not in self._chances:
            if len(self._chances) >= REMEMBERED:
                self._chances.clear()
            seed = derive(self.scenario.seed, "baseline", interception.round, *interception.clients)
            self._chances[key] = metrics.baselines(metric, truth, self.task.spec, guess, seed)
        return self._chances[key]

    def _score(
        self,
        attack: Attack,
        claimed: Reconstruction,
        status: Status,
        error: str,
        seconds: float,
        iterations: int,
    ) -> Outcome:
        label, plan, adversary = self.adversaries[attack.adversary]
        interception, scenario, settings = (
            attack.interception,
            self.scenario,
            self.scenario.training,
        )
        truth = Truth()
        files: dict[str, bytes] = {}
        values: dict[str, float | None] = {}
        try:
            fields = adversary.fills()
        except Exception as reason:
            fields = adversary.recovers
            if status == "ok":
                status, error = "failed", f"fills() raised {type(reason).__name__}: {reason}"
        measured = metrics.applicable(fields, self.task.spec, self.built.metrics)
        try:
            truth = self._truth(interception)
        except Exception as reason:
            if status == "ok":
                status = "failed"
                error = f"its truth cannot be re-derived: {type(reason).__name__}: {reason}"
        known = truth.labels is not None or truth.inputs is not None
        if status == "ok":
            try:
                for each in measured:
                    value = each.score(claimed, truth, self.task.spec)
                    values[each.name] = None if math.isnan(value) else value
            except Exception as reason:
                status, values = "failed", {}
                error = f"its reconstruction cannot be scored: {type(reason).__name__}: {reason}"
        folder = f"{place('artifacts', self.point)}/{interception.victim}/{label}"
        if status == "ok":
            try:
                rendered = self.task.render(claimed, truth)
                files = {f"{folder}/{name}": content for name, content in rendered.items()}
            except Exception as reason:
                error = f"it cannot be shown: {type(reason).__name__}: {reason}"
        shown = [path for path in files if path.startswith(f"{folder}/reconstruction")] or [*files]
        artifact = folder if len(shown) > 1 else "".join(shown)
        held = settings.batch_size
        if truth.num_examples:
            held = truth.num_examples // (settings.local_steps * len(interception.clients)) or 1
        rows = []
        guess = metrics.remembering(self.task.guess)
        # A reconstruction that no metric scores has a row, too.
        scored: Sequence[metrics.Metric | None] = measured or [None]
        for metric in scored:
            chance: float | None = None
            informed: float | None = None
            try:
                if known and metric is not None:
                    chance, informed = self._baselines(metric, truth, interception, guess)
            except Exception as reason:
                error = error or f"no baseline: {type(reason).__name__}: {reason}"
            rows.append(
                Finding(
                    scenario=scenario.name,
                    point=self.point,
                    seed=scenario.seed,
                    round=interception.round,
                    client="+".join(map(str, interception.clients)),
                    victim=interception.victim,
                    adversary=title("adversaries", plan.name),
                    metric=metric.name if metric else "",
                    value=values.get(metric.name) if metric else None,
                    baseline=chance,
                    baseline_prior=informed,
                    status=status,
                    error=error[:2000],
                    attempt=1,
                    seconds=round(seconds, 4),
                    iterations=iterations,
                    granted="|".join(self.threat.granted.names()),
                    label=label,
                    batch_size=held,
                    local_steps=settings.local_steps,
                    inclusion=attack.inclusion,
                    artifact=artifact,
                )
            )
        diagnostics = {}
        if status == "ok":
            with suppress(Exception):  # broken diagnostics do not cost the row
                diagnostics = as_json(claimed.diagnostics)
        return Outcome(interception.round, tuple(rows), files, attack.caution, diagnostics)


Bench = AttackRunner
"""The name that `AttackRunner` had."""


@dataclass(slots=True)
class _Call:
    """The jobs of one call of an adversary, and when it began."""

    jobs: list[Job] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self.started


# Everything but Ctrl-C: an adversary cannot end the run.
_ENDINGS = (Exception, SystemExit, GeneratorExit, Alarm)


def _ending(reason: BaseException) -> tuple[Status, str]:
    """The status and the error of an attack that raised."""
    if isinstance(reason, NotGranted):
        return "denied", str(reason)
    if isinstance(reason, AttackTimeout | Alarm):
        return "timeout", str(reason)
    return "failed", f"{type(reason).__name__}: {reason}"


def _device(gpus: float) -> str:
    return "cuda" if gpus and torch.cuda.is_available() else "cpu"
