"""One attack: run an adversary on what it may see, score its claim, render it, make the rows.

Truth is re-derived here, after the attack, and never reaches the adversary.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from fedsim import metrics
from fedsim.adversary import Adversary, Job
from fedsim.errors import AttackTimeout, Cancelled, NotGranted
from fedsim.knowledge import Knowledge, ThreatModel
from fedsim.records import Finding, Interception, Reconstruction, Status, Truth
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
        defenses = tuple(str(entry["name"]) for entry in scenario.defenses)
        self.threat = ThreatModel(scenario.knowledge(), self.task, defenses)
        self.cancelled: Callable[[], bool] = lambda: False

    def perform(self, attack: Attack) -> Outcome:
        """Attack, score, render. Whatever an adversary does, a row comes of it."""
        label, plan, adversary = self.adversaries[attack.adversary]
        caught = attack.interception
        job = Job(
            torch_generator(self.scenario.seed, f"attack.{label}", caught.round, *caught.clients),
            device=_device(self.scenario.engine.gpus_per_attack),
            budget=plan.budget,
            deadline=plan.timeout or self.scenario.threat.timeout,
            cancelled=self.cancelled,
        )
        started = time.perf_counter()
        claimed, status, error = Reconstruction(), "ok", ""
        if attack.refused:
            status, error = "failed", attack.refused
        else:
            try:
                with (
                    isolated(self.scenario.seed, f"attack.{label}", caught.round, *caught.clients),
                    _alarm(plan.timeout or self.scenario.threat.timeout),
                ):
                    claimed = self._attack(adversary, attack, job)
            except NotGranted as reason:
                status, error = "denied", str(reason)
            except AttackTimeout as reason:
                status, error = "timeout", str(reason)
            except Cancelled:
                raise
            except Exception as reason:
                status, error = "failed", f"{type(reason).__name__}: {reason}"
        seconds = time.perf_counter() - started
        return self._score(attack, claimed, status, error, seconds, job.iterations)  # type: ignore[arg-type]

    def _attack(self, adversary: Adversary, attack: Attack, job: Job) -> Reconstruction:
        missing = adversary.requires() & ~self.threat.granted.closed()
        if missing:
            raise NotGranted(
                f"it needs {', '.join(missing.names())}, which threat.grants withholds"
            )
        caught = attack.interception
        given = Knowledge.LABELS | Knowledge.LENGTHS
        truth = self._truth(caught) if self.threat.granted & given else None
        seen = self.threat.observe(
            caught,
            truth=truth,
            history=[self.threat.observe(earlier) for earlier in attack.history],
        )
        claimed = adversary.reconstruct(seen, job)
        if not isinstance(claimed, Reconstruction):
            raise TypeError(
                f"reconstruct returned {type(claimed).__name__}, expected a Reconstruction"
            )
        return claimed

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
                    values[each.name] = each.score(claimed, truth, self.task.spec)
                place = f"{self.folder}/{caught.victim}/{label}"
                rendered = self.task.render(claimed, truth)
                files = {f"{place}/{name}": content for name, content in rendered.items()}
            except Exception as reason:
                status, values, files = "failed", {}, {}
                error = f"its reconstruction cannot be scored: {type(reason).__name__}: {reason}"
        place_seed = derive(scenario.seed, "baseline", caught.round, *caught.clients)
        rows = []
        # An attack that nothing scores leaves a row too.
        scored: Sequence[metrics.Metric | None] = measured or [None]
        for metric in scored:
            chance, informed = (
                metrics.baselines(metric, truth, self.task.spec, self.task.guess, place_seed)
                if known and metric
                else (None, None)
            )
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
                    batch_size=settings.batch_size,
                    local_steps=settings.local_steps,
                    inclusion=attack.inclusion,
                    artifact=min(files, default=""),
                )
            )
        return Outcome(caught.round, tuple(rows), files)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Stop an attack that never reports progress. Works in a process's main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise AttackTimeout(f"over its limit of {seconds:g} s, without reporting progress")

    previous = signal.signal(signal.SIGALRM, ring)
    # A second later than the job's own deadline, which ends an attack more gently.
    signal.setitimer(signal.ITIMER_REAL, seconds + 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _device(gpus: float) -> str:
    return "cuda" if gpus and torch.cuda.is_available() else "cpu"
