"""The Ray actor that runs attacks, and the form in which attacks are sent to it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.attacking.attack import Attack, AttackRunner, Outcome
from fedsim.attacking.progress import watched
from fedsim.engine.ray.board import Board
from fedsim.errors import RunFolderError
from fedsim.isolation import process
from fedsim.records import Interception
from fedsim.runs.stored import opened
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun, build
from fedsim.temporary import keep_in, remove_stale


@dataclass(frozen=True, slots=True)
class StoredAttack:
    """An attack whose interceptions and global arrays are in files or Ray's object store."""

    attack: Attack
    interception: Any = None
    before: Any = None
    past: Sequence[Any] = ()
    deaths: int = 0

    def whole(self) -> Attack:
        """The attack with its interceptions, fetched from the object store if they are there."""
        if self.interception is None:
            return self.attack
        interception: Interception = replace(
            ray.get(self.interception), before=ray.get(self.before)
        )
        return replace(self.attack, interception=interception, history=tuple(ray.get([*self.past])))


class AttackWorker:
    """An actor that performs attacks, a group at a time."""

    def __init__(self, temporary: str) -> None:
        keep_in(temporary)  # Ray kills this process, and those that it started, without a farewell
        self._built: BuiltRun | None = None

    def ready(self, scenario: str, point: str, board: str) -> None:
        """Load data and model of a point. Time limits of attacks count from then on."""
        remove_stale()
        torch.set_num_threads(1)
        self._board = board
        self._built = build(Scenario.model_validate_json(scenario), after=self._built)
        self._runner = AttackRunner(self._built, point)
        self._runner.warm()

    def perform(self, group: list[StoredAttack], call: int) -> list[Outcome]:
        """Perform a group of attacks, a call with a number of its own; raises `GroupFailed`."""
        with watched(self._runner.progress, functools.partial(Board.write, self._board, call)):
            return self._runner.perform_together([one.whole() for one in group])

    def end(self) -> None:
        """End what would stay when Ray kills this process."""
        process.stop()


def held(one: Interception) -> Interception:
    """An interception whose tensors are in memory."""
    update = one.update.replace(tensors=dict(one.update.tensors), buffers=dict(one.update.buffers))
    return replace(one, before=dict(one.before), update=update)


def found_by_all(path: Path, digest: str) -> bool:
    """Whether every node of the cluster finds the same file at a path."""

    def finds() -> bool:
        try:
            opened(path, digest)
        except RunFolderError:
            return False
        return True

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    asked = [
        ray.remote(finds)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote()
        for node in nodes
    ]
    try:
        return all(ray.get(asked))
    except RayError:  # a node was lost meanwhile
        return False
