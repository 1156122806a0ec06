"""Choose victims, have them attacked while training goes on, and record the findings.

The campaign chooses the victims and records results; an `Executor` of the engine runs the attacks.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import tomli_w
import torch

from fedsim.adversary import Adversary
from fedsim.attacking.attack import Attack, AttackRunner, GroupFailed, Outcome, one_by_one
from fedsim.attacking.progress import AttackProgress, watched
from fedsim.errors import ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.plugin import find, names
from fedsim.records import Interception, Update
from fedsim.report import write_report
from fedsim.runs.ledger import Ledger, place
from fedsim.runs.tape import Tape
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.settings import AttackPlan
from fedsim.seeds import torch_generator
from fedsim.task import Task

UNKNOWN = "unknown"
"""The name of a local optimizer that is not stated."""

LOCAL = ("algorithm", "rounds", "batch_size", "local_steps", "lr", "momentum", "weight_decay")
"""Keys of `training` on how clients train, which may be unknown in another Flower project."""

Observer = Callable[..., None]
"""observer(event, **fields): called with each event, for progress displays and the log."""


class Executor(Protocol):
    """Where attacks run."""

    def submit(self, attacks: Sequence[Attack]) -> None:
        """Accept attacks, without waiting for them."""

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Outcomes of the attacks that have ended; with `wait`, of all attacks."""

    @property
    def pending(self) -> int:
        """The number of attacks that were submitted and not collected."""

    def cancel(self) -> None:
        """Drop attacks that have not ended. Those that have can still be collected."""


class InlineExecutor:
    """Runs attacks in this process, when they are collected.

    Args:
        runner: Runs and scores the attacks.
        observer: Called with their progress.
    """

    def __init__(
        self, runner: AttackRunner, observer: Observer = lambda event, **fields: None
    ) -> None:
        self._runner, self._observer = runner, observer
        self._queue: deque[list[Attack]] = deque()

    def submit(self, attacks: Sequence[Attack]) -> None:
        """Queue attacks for the end of the round."""
        self._queue.extend(self._runner.groups(attacks))

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Run the queued attacks, group by group."""

        def report(now: AttackProgress) -> None:
            self._observer("progress", progress=now)

        while self._queue:
            group = self._queue.popleft()
            try:
                with watched(self._runner.progress, report):
                    outcomes = self._runner.perform_together(group)
            except GroupFailed as reason:
                self._queue.extendleft(reversed(one_by_one(group, str(reason))))
                continue
            yield from outcomes

    @property
    def pending(self) -> int:
        """The number of queued attacks."""
        return sum(map(len, self._queue))

    def cancel(self) -> None:
        """Drop the queue."""
        self._queue.clear()


class Campaign:
    """Chooses the victims of each round, and records the outcomes of their attacks.

    Args:
        built: The scenario's task and plugins.
        ledger: The run folder.
        executor: Runs the attacks.
        point: The name of the sweep's point, "" without a sweep.
        observer: Called with each event.
    """

    def __init__(
        self,
        built: BuiltRun,
        ledger: Ledger,
        executor: Executor,
        *,
        point: str = "",
        observer: Observer = lambda event, **fields: None,
    ) -> None:
        self.scenario, self.ledger, self.executor = built.scenario, ledger, executor
        self.point, self.observer = point, observer
        tape = Tape(ledger.folder / place("tape", point))
        self._tape = tape if self.scenario.threat.record else None
        self._plans = built.adversaries
        self._done = ledger.finished(point)
        self._open: Counter[int] = Counter()
        self.trained: frozenset[str] | None = None
        self.optimizer = UNKNOWN
        """The local optimizer of clients whose updates do not name it."""
        self._history: dict[int, list[Interception]] = defaultdict(list)
        self._keeps_history = Knowledge.HISTORY in built.threat.granted

    @classmethod
    def of(
        cls,
        adversaries: Sequence[Adversary],
        task: Task | None,
        *,
        out: str | Path = "runs/audit",
        **settings: Any,
    ) -> "Campaign":
        """Make a campaign for another Flower project, with attacks in this process.

        The label of the second adversary of a kind is `llg 2`, and so on.

        Args:
            adversaries: The adversaries.
            task: What the clients train.
            out: The run folder, in which settings that are not stated are "unknown".
            **settings: Tables of a scenario (seed, threat, training, defenses) that state what the
                server knows and how the clients train. `training` may also name the clients'
                `optimizer`, such as "sgd" or "adam".

        Raises:
            ScenarioError: The task is missing, an adversary attacks other
                modalities, or a table holds what a scenario's cannot.
        """
        if task is None:
            raise ScenarioError("task is missing: adversaries are scored against its data")
        kind = task.spec_type
        if unsuited := [text for one in adversaries for text in one.unsuited(kind, task.name)]:
            raise ScenarioError("\n".join(unsuited))
        training = {"clients": task.clients, **settings.pop("training", {})}
        optimizer = training.pop("optimizer", UNKNOWN)
        if not isinstance(optimizer, str):
            raise ScenarioError(
                f"training.optimizer is {optimizer!r}; expected a name, such as 'sgd' or 'adam'"
            )
        table = {"name": "audit", "seed": task.seed, **settings, "training": training}
        if task.name in names("tasks"):
            own = task.model_dump(
                mode="json", exclude={"seed", "clients", "folder"}, exclude_none=True
            )
            table["task"] = {"name": task.name, **own}
            table["data_dir"] = str(task.folder or "")
        scenario = Scenario.parse(table)
        plans, called = [], Counter[str]()
        for adversary in adversaries:
            called[name := adversary.name] += 1
            label = name if called[name] == 1 else f"{name} {called[name]}"
            plan = AttackPlan(name=name, label=label, settings=adversary.model_dump())
            plans.append((label, plan, adversary))
        stated = _stated(scenario, table, task)
        ledger = Ledger.create(Path(out), scenario)
        ledger.artifact("scenario.toml", tomli_w.dumps(stated).encode())
        unknown = [] if "defenses" in table else ["defenses"]
        unknown += [f"training.{key}" for key in LOCAL if key not in training]
        if "model" not in stated["task"]:
            unknown.append("task.model")
        ledger.provenance(
            scenario, {"data": task.fingerprint()}, optimizer=optimizer.lower(), unknown=unknown
        )
        built = build(scenario, task=task, adversaries=plans)
        for key, knowledge in (
            ("defenses", Knowledge.DEFENSE),
            ("training.local_steps", Knowledge.LOCAL_STEPS),
        ):
            if key in unknown:
                granted = built.threat.granted & ~knowledge
                built = replace(built, threat=replace(built.threat, granted=granted))
        runner = AttackRunner(built, batch_size_stated="batch_size" in training)
        campaign = cls(built, ledger, InlineExecutor(runner))
        campaign.trained = task.trained(task.module())
        campaign.optimizer = optimizer.lower()
        return campaign

    def finish(self) -> Path:
        """Wait for all attacks, close the run folder and write its report; returns its path."""
        self.collect(wait=True)
        self.ledger.finish()
        return write_report(self.ledger.folder)

    def intercept(
        self,
        round: int,
        interceptions: Sequence[Interception],
        refused: Mapping[int, str] | None = None,
    ) -> None:
        """Queue the attacks on a round's interceptions.

        Args:
            round: The number of the round.
            interceptions: The updates that the server received.
            refused: Why a client's reply could not be used, by client. Its attacks are recorded as
                failed.
        """
        refused = refused or {}
        by_client = {one.clients: one for one in interceptions}
        for client in refused:
            nothing = Update(tensors={}, kind="gradient")
            by_client[(client,)] = Interception(round, (client,), {}, nothing)
        if self._tape is not None:
            for one in interceptions:
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
            for one in interceptions:
                for client in one.clients:
                    self._history[client].append(one)
        self._open[round] += len(attacks)
        self.executor.submit(attacks)
        self.observer("attacks", queued=len(attacks), pending=self.executor.pending)

    def _victims(
        self, round: int, present: Sequence[tuple[int, ...]], plan: AttackPlan
    ) -> list[tuple[tuple[int, ...], float]]:
        """The victims of an adversary, each with the probability of being chosen.

        Clients are ranked once a round by a permutation that depends on (seed, round) alone, and
        not on their updates.
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
        places = torch.randperm(self.scenario.training.clients, generator=rng).tolist()
        rank = dict(enumerate(places))
        last = len(rank)  # for nodes whose client is not known
        chosen = sorted(
            sorted(present, key=lambda one: min(rank.get(c, last) for c in one))[:victims]
        )
        return [(one, min(1.0, victims / len(present))) for one in chosen]

    def collect(self, *, wait: bool = False) -> None:
        """Record the attacks that have ended; with `wait`, all of them."""
        for outcome in self.executor.collect(wait=wait):
            for path, content in outcome.files.items():
                self.ledger.artifact(path, content)
            self.ledger.findings(outcome.findings)
            if outcome.diagnostics:
                row = outcome.findings[0]
                whose = {"point": row.point, "victim": row.victim, "adversary": row.label}
                self.ledger.event("attacked", **whose, diagnostics=outcome.diagnostics)
            self._open[outcome.round] -= 1
            if outcome.caution:
                self.observer("caution", text=outcome.caution)
            self.observer("findings", findings=outcome.findings, pending=self.executor.pending)

    def settled(self, round: int) -> bool:
        """Whether every attack on this round and the earlier ones is recorded."""
        return not any(count and open <= round for open, count in self._open.items())

    def cancel(self) -> None:
        """Stop all attacks. Findings so far are kept."""
        self.executor.cancel()


def _stated(scenario: Scenario, table: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """A scenario as a table, without defaults that may be wrong for another Flower project."""
    stated = scenario.to_dict()
    stated["training"] = {key: stated["training"][key] for key in table["training"]}
    if "defenses" not in table:
        stated.pop("defenses", None)
    if "task" not in table:
        stated["task"] = {"name": task.name}
    elif type(task) is not find("tasks", task.name):  # a subclass may build another model
        stated["task"].pop("model", None)
    return stated
