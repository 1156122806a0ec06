"""Attacks of one adversary, alone or in groups: observation, time limit, reconstruction."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim.adversary import Adversary, Job, group_size
from fedsim.attacking.probes import computed
from fedsim.attacking.progress import AttackProgress, RunningAttacks, progress
from fedsim.attacking.revealed import Revealed, as_trained
from fedsim.attacking.scoring import Attack, Outcome, Scorer
from fedsim.errors import AttackTimeout, NotGranted
from fedsim.isolation import IsolatedAdversary, IsolatedFailure
from fedsim.knowledge import Knowledge
from fedsim.libraries import brief, memory_is_short
from fedsim.metrics import plain
from fedsim.records import Interception, Observation, Reconstruction, Status
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.devices import device_of
from fedsim.seeds import deterministic, isolated, torch_generator

__all__ = ["Attack", "AttackRunner", "Bench", "GroupFailed", "Outcome", "one_by_one"]


class Alarm(BaseException):
    """The time limit is over. Not an `Exception`, so that no attack catches it by accident."""


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raise `Alarm` in the code within, a second after its time limit and again every second.

    It works in the main thread of a process only.

    Args:
        seconds: The time limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm(f"over its limit of {seconds:g} s, without reporting progress")

    previous = signal.signal(signal.SIGALRM, ring)
    # A second later than the job's own deadline, which ends an attack that reports progress.
    signal.setitimer(signal.ITIMER_REAL, seconds + 1, 1.0)
    try:
        yield
    finally:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        finally:  # also if it rings between these two lines
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)


class GroupFailed(Exception):
    """A group of attacks failed as a whole. The argument is the reason, "" if it was denied."""


def one_by_one(group: Sequence[Attack], why: str) -> list[list[Attack]]:
    """Split a failed group into single attacks; the first carries the reason as its caution."""
    first, *rest = group
    text = f"{len(group)} attacks together failed, and are made one by one: {why}"
    return [[replace(first, caution=text if why else "")], *([one] for one in rest)]


def grouped(adversary: Adversary, attacks: Sequence[Attack]) -> list[list[Attack]]:
    """Put an adversary's attacks of a round into groups, which it makes in one call.

    A group is as large as the adversary's `together` says, whatever the number of workers: results
    depend on the size by rounding, and are the same on every engine. Attacks that are refused form
    groups of their own.
    """
    sound = [one for one in attacks if not one.refused]
    size = group_size(adversary)
    together = [sound[at : at + size] for at in range(0, len(sound), size)]
    return [[one] for one in attacks if one.refused] + together


class AttackRunner:
    """Runs and scores the attacks of a run, in any process.

    Attributes:
        built: The scenario's task and plugins.
        point: The name of the sweep's point, "" without a sweep.
    """

    def __init__(self, built: BuiltRun, point: str = "", *, batch_size_stated: bool = True) -> None:
        self.built, self.point = built, point
        self.scenario, self.task = built.scenario, built.task
        deterministic(self.scenario.engine.deterministic)
        self.adversaries, self.threat = built.adversaries, built.threat
        self._scorer = Scorer(built, point, batch_size_stated=batch_size_stated)
        self._running: tuple[str, Sequence[Job]] = ("", ())
        self._unsuited: dict[str, str] = {}

    def warm(self) -> None:
        """Load data and model, so that this does not count as time of the first attack."""
        self.get_ready()
        self.task.num_examples(0)
        self.task.victim({})

    def get_ready(self) -> None:
        """Start, without waiting, what isolated adversaries need."""
        for _, _, adversary in self.adversaries:
            if isinstance(adversary, IsolatedAdversary):
                adversary.get_ready()

    def limit(self, attacks: Sequence[Attack]) -> float:
        """The time limit in seconds for a group of attacks of one adversary."""
        _, plan, _ = self.adversaries[attacks[0].adversary]
        return len(attacks) * (plan.timeout or self.scenario.threat.timeout)

    def progress(self) -> AttackProgress | None:
        """The progress of the attacks that run now; for another thread."""
        return progress(*self._running)

    def running(
        self,
        attacks: Sequence[Attack],
        since: float,
        progress: AttackProgress | None = None,
        node: str = "",
    ) -> RunningAttacks:
        """Describe attacks of one adversary that run together, for progress displays.

        Args:
            attacks: The attacks.
            since: `time.monotonic()` when they began.
            progress: What they have reported.
            node: Address of the node of a cluster.
        """
        label, _, _ = self.adversaries[attacks[0].adversary]
        clients = tuple("+".join(map(str, one.interception.clients)) for one in attacks)
        return RunningAttacks(label, attacks[0].interception.round, clients, since, node, progress)

    def perform(self, attack: Attack) -> Outcome:
        """Attack, score and render. There is a row whatever the adversary does."""
        call, claimed = _Call(), Reconstruction()
        status: Status = "failed" if attack.refused else "ok"
        error = attack.refused
        if not attack.refused:
            try:
                (claimed,) = self._claims([attack], call)
            except BaseException as reason:
                status, error = _ending(reason)
        iterations = sum(job.iterations for job in call.jobs)
        return self._scorer.score(attack, claimed, status, error, call.seconds, iterations)

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
        except BaseException as reason:
            status, error = _ending(reason)
            raise GroupFailed("" if status == "denied" else error) from None
        seconds = call.seconds / len(attacks)
        return [
            self._scorer.score(attack, claimed, "ok", "", seconds, job.iterations)
            for attack, claimed, job in zip(attacks, claims, call.jobs, strict=True)
        ]

    def _claims(self, attacks: Sequence[Attack], call: "_Call") -> list[Reconstruction]:
        """Call the adversary on one or several victims; raises what it raises."""
        label, _, adversary = self.adversaries[attacks[0].adversary]
        limit, alone = self.limit(attacks), len(attacks) == 1
        outside = isinstance(adversary, IsolatedAdversary)  # its process is killed instead
        try:
            with isolated(*self._place(attacks[0])), self._differentiable():
                with alarm(limit):  # a probe is trained here
                    seen = [self._observe(adversary, attack) for attack in attacks]
                call.jobs = [self._job(attack, limit) for attack in attacks]
                self._running = (label, call.jobs)
                call.started = time.perf_counter()
                with nullcontext() if outside else alarm(limit):
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
        return claims if outside else [plain(claimed) for claimed in claims]

    @contextmanager
    def _differentiable(self) -> Iterator[None]:
        """Enable gradients, and attention without kernels that have no second derivative."""
        with (
            sdpa_kernel(SDPBackend.MATH),
            torch.inference_mode(mode=False),
            torch.enable_grad(),
        ):
            yield

    def _place(self, attack: Attack) -> tuple[Any, ...]:
        """The arguments that seed an attack's random numbers: seed, purpose, round, clients.

        None of them is the run's seed: an adversary sees what it is seeded with (`job.rng`).
        """
        label, _, _ = self.adversaries[attack.adversary]
        interception = attack.interception
        seed = self.scenario.threat.seed
        return (seed, f"attack.{label}", interception.draw, *interception.clients)

    def _job(self, attack: Attack, limit: float) -> Job:
        _, plan, _ = self.adversaries[attack.adversary]
        return Job(
            torch_generator(*self._place(attack)),
            device=device_of(self.scenario.engine, "attack"),
            budget=plan.budget,
            deadline=limit,
            compiled=self.scenario.engine.compile,
        )

    def _observe(self, adversary: Adversary, attack: Attack) -> Observation:
        granted, one = self.threat.granted, attack.interception
        if missing := adversary.requires() & ~granted.closed():
            raise NotGranted(
                f"it needs {', '.join(missing.names())}, which threat.grants withholds"
            )
        if isinstance(self.task, Revealed):
            label, _, _ = self.adversaries[attack.adversary]
            if label not in self._unsuited:
                self._unsuited[label] = self.task.unsuited(adversary)
            if self._unsuited[label]:
                raise NotGranted(self._unsuited[label])
            granted &= ~self.task.unknown(one.clients, one.round)
            if missing := adversary.requires() & ~granted.closed():
                raise NotGranted(
                    f"it needs {', '.join(missing.names())}, which the client did not reveal and "
                    "nobody stated: training={'local_steps': ...}"
                )
        if Knowledge.HISTORY in adversary.requires() and not attack.whole_history:
            raise NotGranted(
                "it needs HISTORY, and the recording does not have all earlier updates of this "
                'client. Record them with record.keep = "all"'
            )
        interception = computed(self.built, one)
        given = Knowledge.LABELS | Knowledge.LENGTHS
        run = [
            one.name for one in self.built.defenses if any(map(one.guards, interception.clients))
        ]
        threat = replace(self.threat, granted=granted, defenses=tuple(run))

        def observed(one: Interception, **more: Any) -> Observation:
            found = threat.observe(one, **more)
            if found.model is not None:
                as_trained(self.task, found.model, one)
            return found

        return observed(
            interception,
            truth=self._scorer.truth(interception) if threat.granted & given else None,
            history=[observed(earlier) for earlier in attack.history],
        )


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


GPU_TOO_SMALL = (
    "the GPU has too little memory for this attack. Give attacks more of it "
    '(engine.gpus_per_attack = 1), or a CPU (engine.device = "cpu")'
)

MACHINE_TOO_SMALL = (
    "its machine has too little memory for this attack. Lower engine.attack_workers, "
    "engine.workers or training.batch_size"
)


def _ending(reason: BaseException) -> tuple[Status, str]:
    """The status and the error of an attack that raised; it cannot end the run, as Ctrl-C does."""
    if isinstance(reason, KeyboardInterrupt):
        raise reason
    if isinstance(reason, NotGranted):
        return "denied", str(reason)
    if isinstance(reason, AttackTimeout | Alarm):
        return "timeout", str(reason)
    if isinstance(reason, torch.OutOfMemoryError):
        return "failed", f"{GPU_TOO_SMALL}: {brief(reason)}"
    if isinstance(reason, IsolatedFailure):
        return "failed", str(reason)
    if memory_is_short(reason):
        return "failed", f"{MACHINE_TOO_SMALL}: {brief(reason)}"
    return "failed", f"{type(reason).__name__}: {reason}"
