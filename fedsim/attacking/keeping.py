"""Which interceptions are written to the recording, and which of them stay after the run."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from fedsim.attacking.victims import victims_of
from fedsim.errors import RunFolderError
from fedsim.records import Interception
from fedsim.runs.recording import Recording
from fedsim.scenario import AttackPlan, Scenario
from fedsim.scenario.built import BuiltRun

Clients = tuple[int, ...]


class Keeper:
    """Writes a run's interceptions as its scenario asks, and removes those that do not stay.

    Args:
        recording: The recording.
        scenario: The scenario, for what it keeps (`Scenario.keeps`, `record.max_bytes`).
        shows_history: Whether attacks see earlier interceptions of their victims. All are then
            written, and those that no attack was shown are removed in the end.
        elsewhere: Bytes that the run keeps of other points, which count for `record.max_bytes`.
    """

    def __init__(
        self,
        recording: Recording,
        scenario: Scenario,
        *,
        shows_history: bool,
        elsewhere: int = 0,
    ) -> None:
        self._recording, self._shows_history = recording, shows_history
        self._keeps, self._most = scenario.keeps, scenario.record.max_bytes
        self._attacked: dict[int, set[Clients]] = {}
        self._elsewhere = elsewhere
        self._bytes = elsewhere + sum(recording.kept.values())
        self._left_out: dict[int, int] = {}
        self._unsettled: set[int] = set()

    def record(
        self,
        round: int,
        interceptions: Sequence[Interception],
        refused: Mapping[int, str],
        attacked: set[Clients],
    ) -> dict[Clients, Interception]:
        """Write the interceptions of a round; what neither stays nor is shown remains in memory.

        Args:
            round: The number of the round.
            interceptions: All of its interceptions.
            refused: Why other replies could not be used, by client.
            attacked: The victims of any adversary.

        Returns:
            The interceptions by clients; the tensors of those that were written are read from disk.

        Raises:
            RunFolderError: They cannot be written, such as on a full disk; it says what is lost.
        """
        self.note(round, attacked)
        before = self._recording.rounds.get(round)
        if before is not None:  # of a run that was interrupted; it is recorded again
            self._bytes -= sum(before.kept.values())
        kept = self._fitting(round, {one.clients: _size(one) for one in interceptions})
        with _saying_what_is_lost(round, self._recording):
            stored = [
                self._recording.write(one) if one.clients in kept or self._shows_history else one
                for one in interceptions
            ]
            if self._keeps != "nothing" or self._recording.is_open:
                stay = [one.victim for one in interceptions if one.clients in kept]
                self._recording.close(round, stored, refused, stay)
                self._unsettled.add(round)
        return {one.clients: one for one in stored}

    def note(self, round: int, attacked: set[Clients]) -> None:
        """Note the victims of a round, of which some may be shown their history."""
        self._attacked[round] = attacked

    def settle(self, rounds: Iterable[int]) -> None:
        """Remove the files of rounds whose attacks have ended, if no later attack needs them."""
        for round in () if self._shows_history else self._unsettled.intersection(rounds):
            self._recording.prune(round)
            self._unsettled.discard(round)

    @property
    def unsettled(self) -> tuple[int, ...]:
        """Rounds that may have files which do not stay."""
        return tuple(self._unsettled)

    def close(self) -> dict[str, Any]:
        """Remove what does not stay.

        Returns:
            Numbers of kept `updates` and `rounds`, their `bytes`, and the number of updates that
            were `left_out` of each round because of `record.max_bytes`.
        """
        if self._shows_history:
            self._keep_history()
        for round in self._recording.rounds:
            self._recording.prune(round)
        kept = self._recording.kept
        if not kept:
            self._recording.remove()
        updates = [name for name in kept if "/c" in name]
        return {
            "updates": len(updates),
            "rounds": len({name.partition("/")[0] for name in updates}),
            "bytes": sum(kept.values()),
            "left_out": self._left_out,
        }

    def _fitting(self, round: int, sizes: Mapping[Clients, int]) -> set[Clients]:
        """What stays of a round: as many updates as fit, the attacked ones first."""
        attacked, kept = self._attacked[round], set[Clients]()
        if self._keeps == "nothing":
            return kept
        wanted = [one for one in sizes if self._keeps == "all" or one in attacked]
        wanted.sort(key=lambda one: one not in attacked)
        for one in wanted:
            # The global arrays, about as large as an update, are written once a round.
            size = sizes[one] * (1 if kept else 2)
            if self._bytes + size > self._most:
                self._left_out[round] = len(wanted) - len(kept)
                break
            self._bytes += size
            kept.add(one)
        return kept

    def _keep_history(self) -> None:
        """Decide what stays once it is known what attacks were shown."""
        later, stay = set[int](), dict[int, list[str]]()
        self._bytes, self._left_out = self._elsewhere, {}
        for number in sorted(self._recording.rounds, reverse=True):
            attacked = self._attacked.setdefault(number, set())
            there = self._recording.interceptions(number)
            alone = {one[0] for one in attacked if len(one) == 1}
            attacked |= {one for one in there if later.intersection(one)}
            later |= alone
        for number, line in self._recording.rounds.items():
            there = self._recording.interceptions(number)
            sizes = {one.clients: one.files.update.bytes for one in line.updates if one.files}
            kept = self._fitting(number, {key: sizes[key] for key in there})
            stay[number] = [there[key].victim for key in kept]
        self._recording.keep(stay)


def expected_bytes(built: BuiltRun) -> int:
    """About how many bytes of a run are kept at most, without regard to `record.max_bytes`."""
    scenario, training = built.scenario, built.scenario.training
    if scenario.keeps == "nothing":
        return 0
    arrays = built.task.arrays(built.task.module())
    one = sum(value.numel() * value.element_size() for value in arrays.values())
    anyone = [(client,) for client in range(training.clients)]
    total = 0
    for round in range(1, training.rounds + 1):
        chosen = [victims_of(scenario, plan, round, anyone) for plan in plans_of(scenario)]
        most = training.per_round if scenario.keeps == "all" else max(map(len, chosen))
        most = min(most, 1 if training.secure_aggregation else training.per_round)
        total += one * (most + 1) if most else 0
    return total


def plans_of(scenario: Scenario) -> list[AttackPlan]:
    """The plans of a scenario's adversaries; without any, that of `[threat]` alone."""
    return [*scenario.adversaries] or [AttackPlan(name="")]


@contextlib.contextmanager
def _saying_what_is_lost(round: int, recording: Recording) -> Iterator[None]:
    """Add to the error of a full disk which round is lost, and which are recorded."""
    try:
        yield
    except RunFolderError as error:
        last = max(recording.rounds, default=0)
        there = f"rounds up to {last} are" if last else "no round is"
        raise RunFolderError(
            f"{error}. The updates of round {round} are lost; {there} recorded, and all findings "
            "so far are kept. Make room and resume, or lower what record.keep asks for"
        ) from error


def _size(one: Interception) -> int:
    """The bytes of an update."""
    parts: tuple[Mapping[str, Tensor], ...] = (one.update.tensors, one.update.buffers)
    return sum(each.numel() * each.element_size() for part in parts for each in part.values())
