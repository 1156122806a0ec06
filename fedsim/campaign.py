"""Schedule victims and attacks, run them beside the training, score them, write the findings.

The campaign decides who is attacked and keeps the books; an `Executor`, handed in by the engine,
decides where an attack runs; `Bench` is what a worker needs to run one. Truth is re-derived on the
bench, after the attack, and never reaches the adversary.
"""

import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch

from fedsim import metrics
from fedsim.adversary import Adversary, Job
from fedsim.errors import AttackTimeout, Cancelled, NotGranted, ScenarioError
from fedsim.knowledge import Knowledge, ThreatModel
from fedsim.ledger import Ledger
from fedsim.records import Finding, Interception, Reconstruction, Status, Truth, Update
from fedsim.report import write_report
from fedsim.scenario import AttackPlan, Scenario
from fedsim.seeds import derive, isolated, torch_generator
from fedsim.tape import Tape
from fedsim.tasks import Task

__all__ = ["Attack", "Bench", "Campaign", "Executor", "InlineExecutor", "Outcome"]

Observer = Callable[..., None]
"""observer(event, **fields): told what happens, for progress displays and the log."""


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


class Executor(Protocol):
    """Where attacks run."""

    def submit(self, attacks: Sequence[Attack]) -> None:
        """Take attacks; must not block a round."""

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Outcomes so far; with `wait`, all that are still to come."""

    @property
    def pending(self) -> int:
        """Attacks taken and not yet collected."""

    def cancel(self) -> None:
        """Drop what has not started and stop what runs."""


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
                    isolated(self.scenario.seed, f"attack.{label}", caught.round),
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


class InlineExecutor:
    """Runs attacks in this process, when they are collected."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._queue: list[Attack] = []

    def submit(self, attacks: Sequence[Attack]) -> None:
        """Queue them for the end of the round."""
        self._queue.extend(attacks)

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Run the queue, one by one."""
        while self._queue:
            yield self._bench.perform(self._queue.pop(0))

    @property
    def pending(self) -> int:
        """Attacks queued."""
        return len(self._queue)

    def cancel(self) -> None:
        """Drop the queue."""
        self._queue.clear()


class Campaign:
    """Decides who is attacked in each round, and writes down what came of it."""

    def __init__(
        self,
        scenario: Scenario,
        ledger: Ledger,
        executor: Executor,
        *,
        point: str = "",
        folder: str = "tape",
        observer: Observer = lambda event, **fields: None,
        adversaries: Sequence[tuple[str, AttackPlan, Adversary]] | None = None,
    ) -> None:
        self.scenario, self.ledger, self.executor = scenario, ledger, executor
        self.point, self.observer = point, observer
        self._tape = Tape(ledger.folder / folder) if scenario.threat.record else None
        self._plans = adversaries or scenario.build_adversaries()
        self._done = ledger.finished(point)
        self._open: Counter[int] = Counter()
        self._history: dict[int, list[Interception]] = defaultdict(list)
        self._keeps_history = Knowledge.HISTORY in scenario.knowledge()

    @classmethod
    def of(
        cls,
        adversaries: Sequence[Adversary],
        task: Task | None,
        *,
        out: str | Path = "runs/audit",
        **settings: Any,
    ) -> "Campaign":
        """A campaign of its own, in this process, for someone's own Flower project.

        task: what the clients train. out: the run folder. settings: tables of a scenario (seed,
        threat, training) that say what the server knows and how the clients train.
        """
        if task is None:
            raise ScenarioError("task is missing: adversaries are scored against its data")
        training = {"clients": task.clients, **settings.pop("training", {})}
        scenario = Scenario.parse(
            {"name": "audit", "seed": task.seed, **settings, "training": training}
        )
        plans = []
        for adversary in adversaries:
            plan = AttackPlan(name=adversary.name, settings=adversary.model_dump())
            plans.append((adversary.name, plan, adversary))
        ledger = Ledger.create(Path(out), scenario)
        ledger.provenance(scenario, {"data": task.fingerprint()})
        bench = Bench(scenario, task=task, adversaries=plans)
        return cls(scenario, ledger, InlineExecutor(bench), adversaries=plans)

    def finish(self) -> Path:
        """Wait for the attacks that are still out, close the run folder, write its report."""
        self.collect(wait=True)
        self.ledger.finish()
        return write_report(self.ledger.folder)

    def intercept(
        self, round: int, caught: Sequence[Interception], refused: Mapping[int, str] | None = None
    ) -> None:
        """Take in a round's interceptions and queue the attacks on them.

        refused: by client, why its reply could not be used; its attacks are recorded as failed.
        """
        refused = refused or {}
        by_client = {one.clients: one for one in caught}
        for client in refused:
            by_client[(client,)] = _nothing(round, client)
        if self._tape is not None:
            for one in caught:
                self._tape.record(one)
        attacks = []
        for index, (label, plan, _) in enumerate(self._plans):
            for victim, inclusion in self._victims(round, sorted(by_client), plan):
                one = by_client[victim]
                if (one.victim, label) in self._done:
                    continue
                attacks.append(
                    Attack(
                        one,
                        index,
                        inclusion,
                        refused=refused.get(victim[0], "") if len(victim) == 1 else "",
                        history=tuple(self._history[victim[0]]) if len(victim) == 1 else (),
                    )
                )
        if self._keeps_history:
            for one in caught:
                for client in one.clients:
                    self._history[client].append(one)
        self._open[round] += len(attacks)
        self.executor.submit(attacks)
        self.observer("attacks", queued=len(attacks), pending=self.executor.pending)

    def _victims(
        self, round: int, present: Sequence[tuple[int, ...]], plan: AttackPlan
    ) -> list[tuple[tuple[int, ...], float]]:
        """Who is attacked, with the probability of having been chosen.

        Clients are ranked once a round by a permutation that depends on (seed, round) alone, so
        that a victim is never chosen for what it sent.
        """
        threat = self.scenario.threat
        rounds = threat.rounds if plan.rounds is None else plan.rounds
        if rounds != "all" and round not in rounds:
            return []
        victims = threat.victims if plan.victims is None else plan.victims
        if victims == "all":
            return [(one, 1.0) for one in present]
        if isinstance(victims, list):
            return [(one, 1.0) for one in present if set(one) & set(victims)]
        rng = torch_generator(self.scenario.seed, "victims", round)
        rank = torch.randperm(self.scenario.training.clients, generator=rng).tolist()
        chosen = sorted(sorted(present, key=lambda one: min(rank[c] for c in one))[:victims])
        return [(one, min(1.0, victims / len(present))) for one in chosen]

    def collect(self, *, wait: bool = False) -> None:
        """Write down finished attacks; with `wait`, all of them."""
        for outcome in self.executor.collect(wait=wait):
            for path, content in outcome.files.items():
                self.ledger.artifact(path, content)
            self.ledger.findings(outcome.findings)
            self._open[outcome.round] -= 1
            self.observer("findings", findings=outcome.findings, pending=self.executor.pending)

    def settled(self, round: int) -> bool:
        """Whether every attack on this round and the earlier ones is written down."""
        return not any(count and open <= round for open, count in self._open.items())

    def cancel(self) -> None:
        """Stop attacking; what was found stays."""
        self.executor.cancel()


def _device(gpus: float) -> str:
    return "cuda" if gpus and torch.cuda.is_available() else "cpu"


def _nothing(round: int, client: int) -> Interception:
    return Interception(round, (client,), {}, Update(tensors={}, kind="gradient"))
