"""Choose victims, have an `Executor` attack them while training goes on, record the findings."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.attacking.attack import Attack, grouped
from fedsim.attacking.ended import EndedAttacks
from fedsim.attacking.executor import Executor, Observer
from fedsim.attacking.identity import seen
from fedsim.attacking.keeping import Keeper, bytes_of_others
from fedsim.attacking.probes import probes_of
from fedsim.attacking.victims import present_in, victims_of
from fedsim.isolation import walls_around
from fedsim.knowledge import Knowledge
from fedsim.records import Interception, Update
from fedsim.report import write_report
from fedsim.runs import provenance
from fedsim.runs.attack_log import Ended
from fedsim.runs.ledger import Ledger, place
from fedsim.runs.recording import Recording
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.devices import device_of

UNKNOWN = "unknown"
"""The name of a local optimizer that is not stated."""
Clients = tuple[int, ...]
Lost = tuple[Clients, bool]
"""The clients of a victim, and whether it is a probe."""
Wanted = Callable[[int, Clients], bool]

NOTHING = Update(tensors={}, kind="gradient")
"""The update of a victim that sent none, or whose update is not in the recording, or of a probe."""
NO_MODEL: Mapping[str, Tensor] = {}
"""The global model of a victim whose files are not in the recording."""


class Campaign:
    """Chooses the victims of each round, and records the outcomes of their attacks.

    Args:
        built: The scenario's task and plugins.
        ledger: The run folder.
        executor: Runs the attacks.
        point: The name of the sweep's point, "" without a sweep.
        observer: Called with each event.
        retry: Whether attacks that failed or timed out are repeated.
    """

    def __init__(
        self,
        built: BuiltRun,
        ledger: Ledger,
        executor: Executor,
        *,
        point: str = "",
        observer: Observer = lambda event, **fields: None,
        retry: bool = False,
    ) -> None:
        self.scenario, self.ledger, self.executor = built.scenario, ledger, executor
        self.built = built
        self.point, self.observer = point, observer
        self.recording = Recording(ledger.folder / place("tape", point))
        self._plans = built.adversaries
        self._ended = EndedAttacks(ledger, built, point, retry=retry)
        self._wanted: dict[tuple[str, str], dict[str, Any]] = {}
        self._open: Counter[int] = Counter()
        self.trained: frozenset[str] | None = None
        self.held = contextlib.ExitStack()
        """What `finish` gives back, such as the lock of the run folder."""
        self.optimizer = UNKNOWN
        """The local optimizer of clients whose updates do not name it."""
        self._shows_history = Knowledge.HISTORY in built.threat.granted
        elsewhere = bytes_of_others(self.recording.folder) if point else 0
        shown = self._shows_history
        self._keeper = Keeper(self.recording, built, shows_history=shown, elsewhere=elsewhere)

    def finish(self, diagnose: Callable[[], None] = lambda: None) -> Path:
        """End all attacks, `diagnose`, write the report; returns its path, or the folder's."""
        with self.held:
            self.close()
            self.ledger.finish()
            if self.ledger.rows():
                diagnose()
                return write_report(self.ledger.folder)
        return self.ledger.folder

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
        present = present_in(self.scenario, (one.clients for one in interceptions), refused)
        chosen = self._chosen(round, present)
        found = self._keeper.record(round, interceptions, refused)
        groups, _ = self._groups(round, found, refused, chosen)
        self.submit(round, groups)

    def replay(self, last: int) -> bool:
        """Queue the attacks on recorded rounds that are not done, before training goes on.

        Args:
            last: The last round to attack.

        Returns:
            Whether this is possible. It is not if an interception is not there any more, or if
            adversaries or probes are new and nothing was recorded; then nothing is queued.
        """
        rounds = range(1, last + 1)
        if not all(round in self.recording.rounds for round in rounds):
            nobody: list[list[tuple[Clients, float]]] = [[] for _ in self._plans]
            probes = any(self._groups(round, {}, {}, nobody)[0] for round in rounds)
            return not (self._ended.new or probes)
        queued, lost = self.recorded(lambda number, victim: number <= last)
        more = bool(queued) or last < self.scenario.training.rounds
        needs = any(Knowledge.HISTORY in one.requires() for _, _, one in self._plans)
        if lost or (more and needs and not self.recording.has_all(last)):
            return False
        for round, groups in queued.items():
            self.submit(round, groups)
        return True

    def recorded(
        self, wanted: Wanted = lambda number, victim: True
    ) -> tuple[dict[int, list[list[Attack]]], dict[int, set[Lost]]]:
        """The attacks on recorded rounds that are not done.

        Groups are formed from all victims of a round, and a group is made whole if any of its
        attacks is wanted, so that rows do not depend on what else is wanted.

        Args:
            wanted: Whether an attack is wanted, by round and clients.

        Returns:
            The groups of attacks by round, and the victims whose interceptions are not there.
        """
        queued, lost = dict[int, list[list[Attack]]](), dict[int, set[Lost]]()
        for round, line in self.recording.rounds.items():
            sent = (one.clients for one in line.updates)
            present = present_in(self.scenario, sent, line.refused)
            chosen = self._chosen(round, present)
            self._keeper.note(round, present)
            found = self.recording.interceptions(round)
            groups, missing = self._groups(round, found, line.refused, chosen, wanted)
            queued |= {round: groups} if groups else {}
            lost |= {round: missing} if missing else {}
        return queued, lost

    def selects(self, wanted: Wanted) -> int:
        """The number of wanted attacks on recorded rounds, done or not."""
        selected = 0
        for number, line in self.recording.rounds.items():
            sent = (one.clients for one in line.updates)
            present = present_in(self.scenario, sent, line.refused)
            chosen = [one for victims in self._chosen(number, present) for one, _ in victims]
            chosen += [
                (client,)
                for _, plan, _ in self._plans
                for client, _ in probes_of(self.scenario, plan, number)
            ]
            selected += sum(wanted(number, one) for one in chosen)
        return selected

    def _chosen(self, round: int, present: Sequence[Clients]) -> list[list[tuple[Clients, float]]]:
        """The victims of each adversary among the clients that took part in a round."""
        here = sorted({*present})
        return [victims_of(self.scenario, plan, round, here) for _, plan, _ in self._plans]

    def _groups(
        self,
        round: int,
        found: Mapping[Clients, Interception],
        refused: Mapping[int, str],
        chosen: Sequence[Sequence[tuple[Clients, float]]],
        wanted: Wanted = lambda number, victim: True,
    ) -> tuple[list[list[Attack]], set[Lost]]:
        """The groups of which an attack is wanted and not done, and victims that are not there."""
        groups, lost = list[list[Attack]](), set[Lost]()
        for index, (label, _, adversary) in enumerate(self._plans):
            attacks = []
            for victim, inclusion in chosen[index]:
                alone, history, whole = len(victim) == 1, list[Interception](), True
                if self._shows_history and alone:
                    history, whole = self.recording.history(victim[0], round)
                one = found.get(victim) or Interception(round, victim, NO_MODEL, NOTHING)
                attack = Attack(
                    one,
                    index,
                    inclusion,
                    refused=refused.get(victim[0], ""),
                    history=tuple(history),
                    whole_history=whole,
                    attempt=self._ended.attempt(one, label),
                )
                attacks.append(attack)
            for group in [*grouped(adversary, attacks), *self._probes(index, round, found)]:
                self._ended.repeat_answered(group, label)
                here = [one for one in group if wanted(round, one.interception.clients)]
                left = self._ended.left(here, label)
                if left:
                    groups.append(group)
                    for each in left:
                        shown = {"seen": seen(each), "refused": bool(each.refused)}
                        self._wanted[each.interception.victim, label] = shown
                    lost |= {
                        (one.interception.clients, one.interception.probe is not None)
                        for one in group
                        if one.interception.before is NO_MODEL and not one.refused
                    }
        return groups, lost

    def _probes(
        self, index: int, round: int, found: Mapping[Clients, Interception]
    ) -> Iterator[list[Attack]]:
        """Groups of an adversary's attacks on the probes of a round, each of one batch size."""
        label, plan, adversary = self._plans[index]
        probes = probes_of(self.scenario, plan, round)
        before = next((one.before for one in found.values()), self.recording.model(round))
        line = self.recording.rounds.get(round)
        nothing = before is None and not (line and line.updates)
        why = "no update of this round could be used, so its global model was not recorded"
        refused = why if nothing else ""
        for _, alike in itertools.groupby(probes, key=lambda one: one[1].batch_size):
            attacks = []
            for client, probe in alike:
                given = NO_MODEL if before is None else before
                one = Interception(round, (client,), given, NOTHING, probe)
                attempt = self._ended.attempt(one, label)
                attacks.append(Attack(one, index, 1.0, refused=refused, attempt=attempt))
            yield from grouped(adversary, attacks)

    def submit(self, round: int, groups: Sequence[Sequence[Attack]]) -> None:
        """Queue groups of attacks on a round."""
        self._open += Counter({round: sum(map(len, groups))})
        self.executor.submit(groups)
        attacks = itertools.chain.from_iterable(groups)
        keys = [(one.interception.victim, self._plans[one.adversary][0]) for one in attacks]
        labels = Counter(label for victim, label in keys if (victim, label) in self._wanted)
        queued, pending = labels.total(), self.executor.pending
        self.observer("attacks", round=round, queued=queued, pending=pending, labels=dict(labels))

    def collect(self, *, wait: bool = False) -> None:
        """Record the attacks that have ended; with `wait`, all of them."""
        for outcome in self.executor.collect(wait=wait):
            self._open -= Counter([outcome.round])
            row = outcome.findings[0]
            if (key := (row.victim, row.label)) not in self._wanted:
                continue  # made with its group, of which another attack was wanted
            for path, content in outcome.files.items():
                self.ledger.artifact(path, content)
            same = ("point", "victim", "label", "status", "attempt")
            ended = Ended(
                plan=self._ended.digests[row.label],
                rows=len(outcome.findings),
                **{name: getattr(row, name) for name in same},
                **self._wanted.pop(key),
            )
            self.ledger.findings(outcome.findings, ended)
            if outcome.diagnostics:
                whose = {"point": row.point, "victim": row.victim, "adversary": row.label}
                self.ledger.event("attacked", **whose, diagnostics=outcome.diagnostics)
            if outcome.caution:
                self.observer("caution", text=outcome.caution)
            self.observer("findings", findings=outcome.findings, pending=self.executor.pending)
        if wait:
            self._ended.raise_inclusion()
            device = device_of(self.scenario.engine, "attack")
            provenance.add_isolation(self.ledger.folder, walls_around(self._plans, device))
        self._keeper.settle([round for round in self._keeper.unsettled if self.settled(round)])

    def close(self) -> None:
        """Record the last attacks, and remove the interceptions that do not stay."""
        self.collect(wait=True)
        kept = self._keeper.close()
        if left_out := kept.pop("left_out"):
            most = self.scenario.record.max_bytes
            what = "updates or global models" if self.scenario.threat.probes else "updates"
            self.observer(
                "caution",
                text=f"the recording is full (record.max_bytes = {most}): "
                f"{sum(left_out.values())} {what} of rounds {min(left_out)} to {max(left_out)} "
                "are left out, and cannot be attacked later. Raise record.max_bytes to keep them",
            )
        self.observer("recorded", point=self.point, **kept)

    def used(self, round: int) -> set[int]:
        """The clients of a round that are attacked, or whose updates stay in the recording."""
        return {client for one in self._keeper.used(round) for client in one}

    def settled(self, round: int) -> bool:
        """Whether every attack on this round and the earlier ones is recorded."""
        return not any(open <= round for open in self._open)

    def cancel(self) -> None:
        """Stop all attacks. Findings so far are kept."""
        self.executor.cancel()
