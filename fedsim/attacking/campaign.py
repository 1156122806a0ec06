"""Choose victims, have them attacked while training goes on, and record the findings.

The campaign chooses the victims and records results; an `Executor` of the engine runs the attacks.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fedsim.adversary import Adversary
from fedsim.attacking.attack import Attack, AttackRunner, grouped
from fedsim.attacking.executor import Executor as Executor
from fedsim.attacking.executor import InlineExecutor as InlineExecutor
from fedsim.attacking.executor import Observer as Observer
from fedsim.attacking.keeping import Keeper
from fedsim.errors import ScenarioError
from fedsim.knowledge import Knowledge
from fedsim.plugin import find, names
from fedsim.records import Interception, Update
from fedsim.report import write_report
from fedsim.runs.ledger import Ledger, place
from fedsim.runs.recording import Recording
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.scenario.settings import AttackPlan
from fedsim.seeds import torch_generator
from fedsim.task import Task

UNKNOWN = "unknown"
"""The name of a local optimizer that is not stated."""

LOCAL = ("algorithm", "rounds", "batch_size", "local_steps", "lr", "momentum", "weight_decay")
"""Keys of `training` on how clients train, which may be unknown in another Flower project."""


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
        self.recording = Recording(ledger.folder / place("tape", point))
        self._plans = built.adversaries
        self._done = ledger.finished(point)
        self._open: Counter[int] = Counter()
        self.trained: frozenset[str] | None = None
        self.optimizer = UNKNOWN
        """The local optimizer of clients whose updates do not name it."""
        self._shows_history = Knowledge.HISTORY in built.threat.granted
        self._keeper = Keeper(self.recording, built.scenario, shows_history=self._shows_history)

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
        self.close()
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
        present = sorted({one.clients for one in interceptions} | {(c,) for c in refused})
        chosen = [self._victims(round, present, plan) for _, plan, _ in self._plans]
        attacked = {victim for victims in chosen for victim, _ in victims}
        found = self._keeper.record(round, interceptions, refused, attacked)
        self._attack(round, found, refused, chosen)

    def _attack(
        self,
        round: int,
        found: Mapping[tuple[int, ...], Interception],
        refused: Mapping[int, str],
        chosen: Sequence[Sequence[tuple[tuple[int, ...], float]]],
    ) -> None:
        """Queue the attacks on the chosen victims, in groups of which one is not done."""
        groups = []
        for index, (label, _, adversary) in enumerate(self._plans):
            attacks = []
            for victim, inclusion in chosen[index]:
                alone = len(victim) == 1
                history: list[Interception] = []
                if self._shows_history and alone:
                    history, _ = self.recording.history(victim[0], round)
                why = refused.get(victim[0], "") if alone else ""
                nothing = Update(tensors={}, kind="gradient")
                one = found.get(victim) or Interception(round, victim, {}, nothing)
                attacks.append(Attack(one, index, inclusion, why, tuple(history)))
            groups += [
                group
                for group in grouped(adversary, attacks)
                if any((one.interception.victim, label) not in self._done for one in group)
            ]
        queued = sum(map(len, groups))
        self._open[round] += queued
        self.executor.submit(groups)
        self.observer("attacks", queued=queued, pending=self.executor.pending)

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
            self._open[outcome.round] -= 1
            row = outcome.findings[0]
            if (row.victim, row.label) in self._done:
                continue  # repeated with its group, of which another attack was not done
            for path, content in outcome.files.items():
                self.ledger.artifact(path, content)
            self.ledger.findings(outcome.findings)
            if outcome.diagnostics:
                whose = {"point": row.point, "victim": row.victim, "adversary": row.label}
                self.ledger.event("attacked", **whose, diagnostics=outcome.diagnostics)
            if outcome.caution:
                self.observer("caution", text=outcome.caution)
            self.observer("findings", findings=outcome.findings, pending=self.executor.pending)
        self._keeper.settle([round for round in self._keeper.unsettled if self.settled(round)])

    def close(self) -> None:
        """Record the last attacks, and remove the interceptions that do not stay."""
        self.collect(wait=True)
        kept = self._keeper.close()
        if left_out := kept.pop("left_out"):
            most = self.scenario.record.max_bytes
            self.observer(
                "caution",
                text=f"the recording is full (record.max_bytes = {most}): "
                f"{sum(left_out.values())} updates of rounds {min(left_out)} to {max(left_out)} "
                "are left out, and cannot be attacked later. Raise record.max_bytes to keep them",
            )
        self.observer("recorded", point=self.point, **kept)

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
