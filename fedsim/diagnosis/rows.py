"""The rows of diagnosis.csv: what was measured of an update, and what each attack needed."""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from fedsim.attacking.probes import computed, probes_of
from fedsim.attacking.revealed import Revealed, as_trained
from fedsim.attacking.scoring import Scorer
from fedsim.diagnosis.foreseen import stated
from fedsim.diagnosis.head import Layer
from fedsim.diagnosis.leaks import Key, Outcome
from fedsim.diagnosis.measuring import measure
from fedsim.diagnosis.verdict import because, expect, sentence
from fedsim.errors import FedsimError
from fedsim.quantity import QUANTITIES, Value
from fedsim.records import Interception, Truth, Update
from fedsim.report.diagnosis import rounds_text
from fedsim.runs.reading import split_point
from fedsim.runs.recording import Recording
from fedsim.scenario.built import BuiltRun
from fedsim.task import Task

ABOUT = ["point", "seed", "round", "client", "victim", "label", "adversary"]
VERDICT = ["expected", "found", "gain", "reasons", "unknown", "seen", "needs", "sentence", "advice"]
COLUMNS = [*ABOUT, *VERDICT, *QUANTITIES, "layers"]
"""Columns of diagnosis.csv, one row for each adversary and update."""

EXPECTED = {True: "leaks", False: "nothing", None: ""}
"""How `expected` is written."""

Attacked = Mapping[Any, Any]
"""The first row of an attack in the findings."""


class Rows:
    """Makes the rows of one point.

    Args:
        point: The name of the point.
        built: Its task, threat model and adversaries.
        outcomes: How its attacks ended.
        unknown: Keys of its scenario that were not stated, of another Flower project.
        optimizer: The clients' optimizer, if it is not the scenario's.
    """

    def __init__(
        self,
        point: str,
        built: BuiltRun,
        outcomes: Mapping[Key, Outcome],
        unknown: Collection[str] = (),
        optimizer: str = "",
    ) -> None:
        self.point, self.built, self.outcomes = point, built, outcomes
        self.unknown, self.optimizer = unknown, optimizer
        known = "training.batch_size" not in unknown
        self._scorer = Scorer(built, point, batch_size_stated=known)

    def of_update(self, one: Interception) -> Iterator[list[Any]]:
        """The rows of a recorded update or probe, one for each adversary."""
        task = self.built.task
        one = computed(self.built, one)
        model = as_trained(task, task.victim(one.before), one)
        measured = measure(one, model, truth=self._truth(one))
        values = dict(measured.values)
        if "training.local_steps" in self.unknown and not _is_seen(task, one):
            values["steps"] = None
        layers = json.dumps({name: _shown(layer) for name, layer in measured.layers.items()})
        clients = "+".join(map(str, one.clients))
        for label, _, _ in self.built.adversaries:
            yield self._row(label, one.round, clients, one.victim, values, layers)

    def of_attacks(self, attacks: Collection[Attacked]) -> Iterator[list[Any]]:
        """The rows of attacks on updates that were not recorded: what the scenario says of them.

        Args:
            attacks: A row of the findings for each.
        """
        known = stated(self.built, self.unknown, self.optimizer)
        labels = {label for label, _, _ in self.built.adversaries}
        for row in attacks:
            if row["named"] in labels:
                values = {**known, **_found_out(row)}
                where = int(row["round"]), str(row["client"]), str(row["victim"])
                yield self._row(row["named"], *where, values, "")

    def _row(
        self,
        label: str,
        round: int,
        clients: str,
        victim: str,
        values: Mapping[str, Value],
        layers: str,
    ) -> list[Any]:
        plan, adversary = next((p, a) for name, p, a in self.built.adversaries if name == label)
        key = (*point_and_seed(self.point, self.built.scenario.seed), victim, label)
        outcome = self.outcomes.get(key, Outcome("", None, ""))
        verdict = expect(adversary, self.built.threat.granted, values)
        seen, needs = because(verdict, values)
        where = f" in {rounds_text([round])}"
        row = {
            "point": self.point,
            "seed": self.built.scenario.seed,
            "round": round,
            "client": clients,
            "victim": victim,
            "label": label,
            "adversary": plan.name,
            "expected": EXPECTED[verdict.leaks],
            "found": outcome.found,
            "gain": outcome.gain,
            "reasons": " ".join(verdict.reasons),
            "unknown": " ".join(each.quantity for each in verdict.unknown),
            "seen": seen,
            "needs": needs,
            "sentence": sentence(label, verdict, values, where=where, ended=outcome.said),
            "advice": verdict.advice,
            "layers": layers,
            **values,
        }
        return [row.get(column) for column in COLUMNS]

    def _truth(self, one: Interception) -> Truth | None:
        try:
            return self._scorer.truth(one)
        except FedsimError:  # such as examples that a client did not reveal
            return None


def point_and_seed(name: str, seed: int) -> tuple[str, str]:
    """A point without its seed, and its seed, as a report has them.

    Args:
        name: The name of the point.
        seed: The seed of its scenario.
    """
    own, point = split_point(name)
    return point, own or str(seed)


def recorded(built: BuiltRun, recording: Recording) -> Iterator[Interception]:
    """The recorded updates, and the probes of each round whose global model was kept.

    The updates of probes are not computed yet.
    """
    for number in recording.rounds:
        there = recording.interceptions(number)
        yield from there.values()
        before = next((one.before for one in there.values()), recording.model(number))
        plans = [plan for _, plan, _ in built.adversaries]
        asked = {pair: None for plan in plans for pair in probes_of(built.scenario, plan, number)}
        for client, probe in asked:
            if before is None:
                break
            nothing = Update(tensors={}, kind="gradient")
            yield Interception(number, (client,), before, nothing, probe)


def _found_out(row: Attacked) -> dict[str, Value]:
    """What the findings say of an update of one client: its examples and local steps."""
    size, steps = str(row["batch_size"]), str(row["local_steps"])
    if "+" in str(row["client"]) or not (size.isdecimal() and steps.isdecimal()):
        return {}
    return {"examples": int(size) * int(steps), "steps": int(steps)}


def _is_seen(task: Task, one: Interception) -> bool:
    """Whether `fedsim.watch` saw how a client of another Flower project trained."""
    return isinstance(task, Revealed) and task.state(one.clients, one.round) != "absent"


def _shown(layer: Layer) -> dict[str, Any]:
    snr = None if layer.snr is None else float(f"{min(layer.snr, 1e12):.4g}")
    return {"rank": layer.rank, "most": layer.most, "snr": snr}
