"""One attack: run an adversary on what it may see, score its claim, render it, make the rows.

Truth is re-derived here, after the attack, and never reaches the adversary.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import torch

from fedsim import metrics
from fedsim.adversary import Adversary, Job
from fedsim.errors import AttackTimeout, NotGranted
from fedsim.knowledge import Knowledge, ThreatModel
from fedsim.records import Finding, Interception, Observation, Reconstruction, Status, Truth
from fedsim.scenario import Scenario
from fedsim.seeds import derive, isolated, torch_generator
from fedsim.settings import AttackPlan
from fedsim.tasks import Task

__all__ = ["Attack", "Bench", "Outcome"]


@dataclass(frozen=True, slots=True, eq=False)
class Attack:
    """One adversary against one victim. refused: why there is nothing to attack, if so."""

    interception: Interception
    adversary: int
    inclusion: float
    refused: str = ""
    history: tuple[Interception, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of an attack: rows, and files by path in the run folder."""

    round: int
    findings: tuple[Finding, ...]
    files: Mapping[str, bytes]


class Bench:
    """Runs and scores attacks; built from the scenario alone, in any process."""

    def __init__(
        self,
        scenario: Scenario,
        point: str = "",
        folder: str = "artifacts",
        *,
        task: Task | None = None,
        adversaries: Sequence[tuple[str, AttackPlan, Adversary]] | None = None,
    ) -> None:
        self.scenario, self.point, self.folder = scenario, point, folder
        self.task = task or scenario.build_task()
        self.adversaries = adversaries or scenario.build_adversaries()
        self.defenses = scenario.build_defenses()
        self.threat = ThreatModel(scenario.knowledge(), self.task)

    def warm(self) -> None:
        """Load data and model now, so that no attack's time is spent on it."""
        self.task.num_examples(0)
        self.task.victim({})

    def perform(self, attack: Attack) -> Outcome:
        """Attack, score, render. Whatever an adversary does, a row comes of it."""
        label, plan, adversary = self.adversaries[attack.adversary]
        caught, seed = attack.interception, self.scenario.seed
        where = (caught.round, *caught.clients)
        limit = plan.timeout or self.scenario.threat.timeout
        claimed, error, job = Reconstruction(), attack.refused, None
        status: Status = "failed" if attack.refused else "ok"
        started = time.perf_counter()
        try:
            if not attack.refused:
                with isolated(seed, f"attack.{label}", *where):
                    seen = self._observe(adversary, attack)
                    job = Job(
                        torch_generator(seed, f"attack.{label}", *where),
                        device=_device(self.scenario.engine.gpus_per_attack),
                        budget=plan.budget,
                        deadline=limit,
                    )
                    started = time.perf_counter()
                    with _alarm(limit):
                        claimed = adversary.reconstruct(seen, job)
                if not isinstance(claimed, Reconstruction):
                    raise TypeError(
                        f"reconstruct returned {type(claimed).__name__}, expected a Reconstruction"
                    )
        except NotGranted as reason:
            status, error = "denied", str(reason)
        except (AttackTimeout, _Alarm) as reason:
            status, error = "timeout", str(reason)
        except (Exception, SystemExit, GeneratorExit) as reason:
            status, error = "failed", f"{type(reason).__name__}: {reason}"
        if status != "ok":
            claimed = Reconstruction()
        seconds = time.perf_counter() - started
        iterations = 0 if job is None else job.iterations
        return self._score(attack, claimed, status, error, seconds, iterations)

    def _observe(self, adversary: Adversary, attack: Attack) -> Observation:
        missing = adversary.requires() & ~self.threat.granted.closed()
        if missing:
            raise NotGranted(
                f"it needs {', '.join(missing.names())}, which threat.grants withholds"
            )
        caught = attack.interception
        given = Knowledge.LABELS | Knowledge.LENGTHS
        run = [one.name for one in self.defenses if any(map(one.guards, caught.clients))]
        threat = replace(self.threat, defenses=tuple(run))
        return threat.observe(
            caught,
            truth=self._truth(caught) if threat.granted & given else None,
            history=[threat.observe(earlier) for earlier in attack.history],
        )

    def _truth(self, caught: Interception) -> Any:
        settings = self.scenario.training
        return self.task.truth(
            caught.clients,
            caught.round,
            batch_size=settings.batch_size,
            steps=settings.local_steps,
        )

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
        caught, scenario, settings = attack.interception, self.scenario, self.scenario.training
        truth = Truth()
        files: dict[str, bytes] = {}
        values: dict[str, float | None] = {}
        measured = metrics.applicable(adversary.recovers, self.task.spec)
        try:
            truth = self._truth(caught)
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
                place = f"{self.folder}/{caught.victim}/{label}"
                rendered = self.task.render(claimed, truth)
                files = {f"{place}/{name}": content for name, content in rendered.items()}
            except Exception as reason:
                status, values, files = "failed", {}, {}
                error = f"its reconstruction cannot be scored: {type(reason).__name__}: {reason}"
        place_seed = derive(scenario.seed, "baseline", caught.round, *caught.clients)
        held = settings.batch_size
        if truth.labels is not None:
            held = len(truth.labels) // (settings.local_steps * len(caught.clients)) or 1
        rows = []
        # A claim that no metric scores is still an outcome.
        scored: Sequence[metrics.Metric | None] = measured or [None]
        for metric in scored:
            chance: float | None = None
            informed: float | None = None
            try:
                if known and metric is not None:
                    chance, informed = metrics.baselines(
                        metric, truth, self.task.spec, self.task.guess, place_seed
                    )
            except Exception as reason:
                error = error or f"no baseline: {type(reason).__name__}: {reason}"
            rows.append(
                Finding(
                    scenario=scenario.name,
                    point=self.point,
                    seed=scenario.seed,
                    round=caught.round,
                    client="+".join(map(str, caught.clients)),
                    victim=caught.victim,
                    adversary=plan.name,
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
                    artifact=min(files, default=""),
                )
            )
        return Outcome(caught.round, tuple(rows), files)


class _Alarm(BaseException):
    """Time is up. No `Exception`, so that an attack that catches everything hears it too."""


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Stop an attack that never reports progress. Works in a process's main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _Alarm(f"over its limit of {seconds:g} s, without reporting progress")

    previous = signal.signal(signal.SIGALRM, ring)
    # A second later than the job's own deadline, which ends an attack more gently; then again.
    signal.setitimer(signal.ITIMER_REAL, seconds + 1, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _device(gpus: float) -> str:
    return "cuda" if gpus and torch.cuda.is_available() else "cpu"
