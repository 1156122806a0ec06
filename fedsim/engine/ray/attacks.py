"""An executor that runs attacks on Ray actors while training goes on."""

import contextlib
import functools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.attacking.attack import Attack, AttackRunner, GroupFailed, Outcome, one_by_one
from fedsim.attacking.executor import Observer
from fedsim.attacking.progress import Board, watched
from fedsim.engine.ray import session
from fedsim.errors import RunFolderError
from fedsim.records import Interception
from fedsim.runs.stored import StoredTensors, opened
from fedsim.scenario import Scenario
from fedsim.scenario.built import build

GRACE = 10.0
"""Seconds beyond its time limit after which the worker of an attack is killed."""

REPEATS = 2
"""How often an attack is repeated elsewhere after its worker died: a node may have been lost."""


@dataclass(frozen=True, slots=True)
class _Stored:
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


class _AttackWorker:
    """An actor that performs attacks, a group at a time."""

    def __init__(self, scenario: str, point: str, index: int, board: str) -> None:
        torch.set_num_threads(1)
        built = build(Scenario.model_validate_json(scenario))
        self._runner = AttackRunner(built, point)
        self._report = functools.partial(Board.write, board, index)
        self._runner.warm()

    def ready(self) -> None:
        """Return once data and model are loaded. Time limits of attacks count from then on."""

    def perform(self, group: list[_Stored]) -> list[Outcome]:
        """Perform a group of attacks; raises `GroupFailed`."""
        with watched(self._runner.progress, self._report):
            return self._runner.perform_together([one.whole() for one in group])


@dataclass(slots=True)
class _Running:
    group: list[_Stored]
    worker: int
    since: float


class RayExecutor:
    """Runs groups of attacks on workers of their own; the others wait in the object store.

    If a group fails or its worker dies, its attacks are queued again one by one. If a worker dies
    with a single attack, that attack is repeated at most `REPEATS` times. A worker that has no
    place, because a node was lost, leaves its attacks to the others; if no worker has one for
    `session.PLACE` seconds, `collect` raises `EngineError`.

    Args:
        runner: The runner of this process, which groups attacks and records those that are lost.
        number: The number of workers.
        gpus: GPUs of each worker.
        observer: Called with the progress of attacks.
    """

    def __init__(
        self,
        runner: AttackRunner,
        number: int,
        gpus: float,
        observer: Observer = lambda event, **fields: None,
    ) -> None:
        self._runner, self._observer = runner, observer
        self._number, self._gpus = number, gpus
        self._board = Board()
        self._workers: list[Any] = []
        self._queue: deque[list[_Stored]] = deque()
        self._past: dict[str, Any] = {}
        self._sees_files: bool | None = None
        self._starting: dict[int, Any] = {}
        self._placeless: dict[int, float] = {}
        self._warned = False
        self._running: dict[Any, _Running] = {}

    def _new(self, index: int) -> Any:
        runner = self._runner
        worker = (
            ray.remote(_AttackWorker)
            .options(num_cpus=1, num_gpus=self._gpus)
            .remote(runner.scenario.model_dump_json(), runner.point, index, self._board.folder)
        )
        self._starting[index] = worker.ready.remote()  # type: ignore[attr-defined]
        return worker

    def submit(self, groups: Sequence[Sequence[Attack]]) -> None:
        """Queue groups of attacks, with each interception and global model stored once.

        Recorded interceptions are read from their files, if all nodes find these.
        """
        if not self._workers and groups:
            self._workers = [self._new(index) for index in range(self._number)]
        stored: dict[Any, Any] = {}

        def put(value: Any, key: Any, known: dict[Any, Any] = stored) -> Any:
            if key not in known:
                known[key] = ray.put(value)
            return known[key]

        def store(attack: Attack) -> _Stored:
            interception = attack.interception
            if self._in_files(interception):
                return _Stored(attack)
            sent = interception.before
            before = put(dict(sent), sent.path if isinstance(sent, StoredTensors) else id(sent))
            light = put(_held(replace(interception, before={})), interception.victim)
            nothing = interception.update.replace(tensors={}, buffers={})
            stub = replace(interception, before={}, update=nothing)
            past = [put(_held(one), one.victim, self._past) for one in attack.history]
            return _Stored(replace(attack, interception=stub, history=()), light, before, past)

        self._queue += [[store(attack) for attack in group] for group in groups]
        self._fill()

    def _in_files(self, interception: Interception) -> bool:
        """Whether an interception is recorded, in files that all nodes find; tried once."""
        tensors = interception.before
        if not isinstance(tensors, StoredTensors):
            return False
        if self._sees_files is None:
            elsewhere = bool(self._runner.scenario.engine.address)
            self._sees_files = not elsewhere or found_by_all(tensors.path, tensors.digest)
        return self._sees_files

    def _fill(self) -> None:
        busy = {running.worker for running in self._running.values()}
        free = [index for index in range(len(self._workers)) if index not in busy]
        # A worker that replaces another may wait for a node, if one was lost.
        ready = [index for index in free if self._is_ready(index)]
        if len(self._starting) < len(self._workers):
            free = ready
        for index in free[: len(self._queue)]:
            group = self._queue.popleft()
            task = self._workers[index].perform.remote(group)
            self._running[task] = _Running(group, index, time.monotonic())

    def _is_ready(self, index: int) -> bool:
        """Whether a worker has started."""
        started = self._starting.get(index)
        if started is not None and ray.wait([started], timeout=0)[0]:
            del self._starting[index]
        return index not in self._starting

    def _find_places(self) -> None:
        """Queue again what waits for a worker without a place on a node, if another one is free.

        Raises:
            EngineError: No worker has had a place for long.
        """
        ready = {index for index in range(len(self._workers)) if self._is_ready(index)}
        now = time.monotonic()
        self._placeless = {
            index: self._placeless.get(index, now)
            for index in self._starting
            if session.node_of(self._workers[index]) == ""
        }
        lacking = len(self._placeless)
        if not lacking:
            return
        if lacking == self._number:
            if now - max(self._placeless.values()) > session.PLACE:
                raise session.no_place("attack", self._number, 1.0, self._gpus)
        elif now - min(self._placeless.values()) > session.PLACE and not self._warned:
            self._warned = True
            self._observer("caution", text=session.fewer("attack", lacking, self._number))
        free = len(ready - {running.worker for running in self._running.values()})
        for task, running in list(self._running.items()):
            if len(self._queue) < free and running.worker in self._placeless:
                del self._running[task]
                self._replace(running.worker)
                self._queue.append(running.group)

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Outcomes as attacks end. Waits in short steps, so that Ctrl-C takes effect.

        Raises:
            EngineError: No worker has had a place on a node for long.
        """
        while self._running:
            self._find_places()
            self._fill()
            done, _ = ray.wait(list(self._running), timeout=0.5 if wait else 0)
            for task in done:
                running = self._running.pop(task)
                try:
                    outcomes = ray.get(task)
                except GroupFailed as wrapped:
                    # What Ray raises is of both kinds, and holds the worker's own exception.
                    outcomes = self._again(running, str(wrapped.args[0]))
                except RayError as error:
                    outcomes = self._lost(running, f"its worker died: {type(error).__name__}")
                self._fill()
                yield from outcomes
            yield from self._overdue()
            for now in self._board.read():
                self._observer("progress", progress=now)
            if not done and not wait:
                return

    def _overdue(self) -> Iterator[Outcome]:
        for task, running in list(self._running.items()):
            limit = self._runner.limit([one.attack for one in running.group])
            if not self._is_ready(running.worker):
                running.since = time.monotonic()
                continue
            if time.monotonic() - running.since > limit + GRACE:
                del self._running[task]
                outcomes = self._lost(
                    running, f"over its limit of {limit:g} s, and its worker was killed", "timeout"
                )
                self._fill()
                yield from outcomes

    def _again(self, running: _Running, why: str) -> list[Outcome]:
        """Queue the attacks of a failed group one by one, before all others."""
        stored = running.group
        attacks = one_by_one([one.attack for one in stored], why)
        groups = [
            [replace(one, attack=attack)] for one, (attack,) in zip(stored, attacks, strict=True)
        ]
        self._queue.extendleft(reversed(groups))
        return []

    def _replace(self, index: int) -> None:
        """Kill a worker, and start another one in its place."""
        with contextlib.suppress(Exception):
            ray.kill(self._workers[index])
        self._workers[index] = self._new(index)

    def _lost(self, running: _Running, why: str, status: str = "failed") -> list[Outcome]:
        """Replace a worker that died, and record or repeat the attacks that it had."""
        if self._workers:
            self._replace(running.worker)
        if len(running.group) > 1:
            return self._again(running, why)
        (one,) = running.group
        if status == "failed" and one.deaths < REPEATS:
            self._queue.appendleft([replace(one, deaths=one.deaths + 1)])
            return []
        outcome = self._runner.perform(replace(one.attack, refused=why))
        findings = tuple(replace(row, status=status) for row in outcome.findings)  # type: ignore[arg-type]
        return [replace(outcome, findings=findings)]

    @property
    def pending(self) -> int:
        """Attacks queued and running."""
        groups = (*self._queue, *(running.group for running in self._running.values()))
        return sum(map(len, groups))

    def cancel(self) -> None:
        """Drop the queue and kill the workers. Attacks that have ended can still be collected."""
        self._queue.clear()
        with contextlib.suppress(Exception):
            tasks = list(self._running)
            done = ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
            self._running = {task: self._running[task] for task in done}
        for worker in self._workers:
            with contextlib.suppress(Exception):
                ray.kill(worker)
        self._workers = []
        self._board.close()


def _held(one: Interception) -> Interception:
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
