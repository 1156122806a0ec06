"""Which interceptions are written to the recording, and which of them stay after the run."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from fedsim.attacking.probes import probes_of
from fedsim.attacking.victims import most_together, present_in, rounds_of, victims_of
from fedsim.errors import RunFolderError
from fedsim.records import Interception, Update
from fedsim.runs.recording import Recording
from fedsim.runs.stored import StoredTensors
from fedsim.scenario import AttackPlan, Scenario
from fedsim.scenario.built import BuiltRun

Clients = tuple[int, ...]


class Keeper:
    """Writes a run's interceptions as its scenario asks, and removes those that do not stay.

    Args:
        recording: The recording.
        built: The run: what it keeps (`Scenario.keeps`, `record.max_bytes`), and whom its
            adversaries attack. Without adversaries, that is what `[threat]` selects.
        shows_history: Whether attacks see earlier interceptions of their victims. All are then
            written, and those that no attack was shown are removed in the end.
        elsewhere: Bytes that the run keeps of other points, which count for `record.max_bytes`.
    """

    def __init__(
        self,
        recording: Recording,
        built: BuiltRun,
        *,
        shows_history: bool,
        elsewhere: int = 0,
    ) -> None:
        self._recording, self._shows_history = recording, shows_history
        self._scenario = built.scenario
        self._plans = [plan for _, plan, _ in built.adversaries] or plans_of(built.scenario)
        self._attacks = bool(built.adversaries)
        self._keeps, self._most = built.scenario.keeps, built.scenario.record.max_bytes
        self._attacked: dict[int, set[Clients]] = {}
        self._probed: set[int] = set()
        self._elsewhere = elsewhere
        self._bytes = elsewhere + sum(recording.kept.values())
        self._left_out: dict[int, int] = {}
        self._unsettled: set[int] = set()

    def record(
        self,
        round: int,
        interceptions: Sequence[Interception],
        refused: Mapping[int, str],
    ) -> dict[Clients, Interception]:
        """Write the interceptions of a round; what neither stays nor is shown remains in memory.

        Args:
            round: The number of the round.
            interceptions: All of its interceptions.
            refused: Why other replies could not be used, by client.

        Returns:
            The interceptions by clients; the tensors of those that were written are read from disk.

        Raises:
            RunFolderError: They cannot be written, such as on a full disk; it says what is lost.
        """
        sent = (one.clients for one in interceptions)
        self.note(round, present_in(self._scenario, sent, refused))
        earlier = self._recording.rounds.get(round)
        if earlier is not None:  # of a run that was interrupted; it is recorded again
            self._bytes -= sum(earlier.kept.values())
        sizes = {one.clients: _update_size(one.update) for one in interceptions}
        model = _size(interceptions[0].before) if interceptions else 0
        kept, with_model = self._fitting(round, sizes, model)
        with _saying_what_is_lost(round, self._recording):
            stored = [
                self._recording.write(one) if one.clients in kept or self._shows_history else one
                for one in interceptions
            ]
            if with_model:
                self._recording.write_model(interceptions[0])
            # A resumed run with attacks has to know who took part, even if no update is kept.
            if self._attacks or self._keeps != "nothing" or self._recording.is_open:
                stay = [one.victim for one in interceptions if one.clients in kept]
                self._recording.close(round, stored, refused, stay)
                self._unsettled.add(round)
        return {one.clients: one for one in stored}

    def note(self, round: int, present: Iterable[Clients]) -> None:
        """Note whom adversaries attack in a round, and whether they attack probes.

        Args:
            round: The number of the round.
            present: Those that may be attacked (`present_in`).
        """
        if not self._shows_history:  # then no earlier round is asked for
            self._attacked.clear()
            self._probed.clear()
        here = sorted({*present})
        chosen = [victims_of(self._scenario, plan, round, here) for plan in self._plans]
        self._attacked[round] = {victim for victims in chosen for victim, _ in victims}
        if any(probes_of(self._scenario, plan, round) for plan in self._plans):
            self._probed.add(round)

    def used(self, round: int) -> set[Clients]:
        """The clients of each update of a round that is attacked or stays."""
        line = self._recording.rounds.get(round)
        stay = {one.clients for one in line.updates if one.kept} if line else set[Clients]()
        return stay | self._attacked.get(round, set())  # none if it was interrupted

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
            Numbers of kept `updates` and of `rounds` that have such, or a global model for probes,
            their `bytes`, and the number of updates and models that were `left_out` of each round
            because of `record.max_bytes`.
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
            "rounds": len({name.partition("/")[0] for name in kept}),
            "bytes": sum(kept.values()),
            "left_out": self._left_out,
        }

    def _fitting(
        self, round: int, sizes: Mapping[Clients, int], model: int
    ) -> tuple[set[Clients], bool]:
        """What stays of a round: the model for probes, then updates that fit, attacked first.

        Args:
            round: The number of the round.
            sizes: The bytes of each update.
            model: The bytes of the global arrays, which are written once a round.

        Returns:
            The clients of the updates that stay, and whether the global arrays stay for probes.
        """
        attacked, kept = self._attacked[round], set[Clients]()
        probed = round in self._probed and bool(sizes)
        if self._keeps == "nothing":
            return kept, False
        wanted = [one for one in sizes if self._keeps == "all" or one in attacked]
        wanted.sort(key=lambda one: one not in attacked)
        if probed and self._bytes + model > self._most:
            self._left_out[round] = len(wanted) + 1
            return kept, False
        self._bytes += model if probed else 0
        for one in wanted:
            size = sizes[one] + (0 if kept or probed else model)
            if self._bytes + size > self._most:
                self._left_out[round] = len(wanted) - len(kept)
                break
            self._bytes += size
            kept.add(one)
        return kept, probed

    def _keep_history(self) -> None:
        """Decide what stays once it is known what attacks were shown."""
        later, stay, models = set[int](), dict[int, list[str]](), set[int]()
        self._bytes, self._left_out = self._elsewhere, {}
        for number in sorted(self._recording.rounds, reverse=True):
            attacked = self._attacked.setdefault(number, set())
            there = self._recording.interceptions(number)
            alone = {one[0] for one in attacked if len(one) == 1}
            attacked |= {one for one in there if later.intersection(one)}
            later |= alone
        for number, line in self._recording.rounds.items():
            there = self._recording.interceptions(number)
            files = {one.clients: one.files for one in line.updates if one.files}
            sizes = {key: files[key].update.bytes for key in there}
            model = max((two.before.bytes for two in files.values()), default=0)
            kept, with_model = self._fitting(number, sizes, model)
            stay[number] = [there[key].victim for key in kept]
            models |= {number} if with_model else set()
        self._recording.keep(stay, models)


def expected_bytes(built: BuiltRun) -> int:
    """About how many bytes of a run are kept at most, without regard to `record.max_bytes`."""
    scenario, training = built.scenario, built.scenario.training
    if scenario.keeps == "nothing":
        return 0
    arrays = built.task.arrays(built.task.module())
    one = sum(value.numel() * value.element_size() for value in arrays.values())
    plans = [(plan, rounds_of(scenario, plan)) for plan in plans_of(scenario)]
    total = 0
    for round in range(1, training.rounds + 1):
        attacked = most_together(scenario, [plan for plan, rounds in plans if round in rounds])
        most = training.per_round if scenario.keeps == "all" else attacked
        most = min(most, 1 if training.secure_aggregation else training.per_round)
        probed = any(probes_of(scenario, plan, round) for plan, _ in plans)
        total += one * (most + 1) if most or probed else 0
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
        raise type(error)(
            f"{error}. The updates of round {round} are lost; {there} recorded, and all findings "
            "so far are kept. Make room and resume, or lower what record.keep asks for"
        ) from error


def _size(*parts: Mapping[str, Tensor]) -> int:
    """The bytes of tensors."""
    return sum([each.nbytes for part in parts for each in part.values()])


def _update_size(update: Update) -> int:
    """The bytes of an update's tensors, which are not read if they are written already."""
    if isinstance(update.tensors, StoredTensors):
        return update.tensors.bytes_of_file()
    return _size(update.tensors, update.buffers)


def bytes_of_others(recording: Path) -> int:
    """The bytes that a run keeps of a sweep's other points.

    Args:
        recording: The folder of a point's recording.
    """
    files = recording.parent.glob("*/r*/*.safetensors")
    return sum(file.stat().st_size for file in files if not file.is_relative_to(recording))
