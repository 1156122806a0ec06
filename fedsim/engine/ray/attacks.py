"""An executor that runs attacks on Ray actors while training goes on."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from fedsim.attacking.attack import (
    MACHINE_TOO_SMALL,
    Attack,
    AttackRunner,
    GroupFailed,
    Outcome,
    one_by_one,
)
from fedsim.attacking.executor import Observer
from fedsim.attacking.progress import EVERY, AttackProgress
from fedsim.engine.ray import places
from fedsim.engine.ray.board import Board
from fedsim.engine.ray.pool import AttackPool
from fedsim.engine.ray.worker import StoredAttack, found_by_all, held
from fedsim.errors import EngineError
from fedsim.libraries import brief
from fedsim.records import Interception
from fedsim.runs.stored import StoredTensors

GRACE = 10.0
"""Seconds beyond its time limit after which the worker of an attack is killed."""

REPEATS = 2
"""How often a single attack is repeated elsewhere after its worker died: a node may be lost."""


@dataclass(slots=True)
class _Running:
    group: list[StoredAttack]
    worker: int
    since: float
    call: int
    progress: AttackProgress | None = None


class RayExecutor:
    """Runs groups of attacks on dedicated Ray actors; queued groups wait in the object store.

    If a group fails, each of its attacks is queued again on its own. If its worker dies, the group
    is queued again as a whole, since results depend on its size by rounding; if another one dies,
    each attack on its own. A single attack whose worker dies is retried at most `REPEATS` times, or
    once if its group was retried. A worker that Ray cannot schedule, because a node was lost,
    leaves its attacks to the others; if Ray can schedule none for `engine.place_timeout` seconds,
    `collect` raises `EngineError`.

    Args:
        runner: The runner of this process, which groups attacks and records those that are lost.
        number: The number of workers.
        pool: Where workers come from, and go when they have nothing more to do.
        observer: Called with the progress of attacks.
    """

    def __init__(
        self,
        runner: AttackRunner,
        number: int,
        pool: AttackPool,
        observer: Observer = lambda event, **fields: None,
    ) -> None:
        self._runner, self._observer = runner, observer
        self._number, self._pool = number, pool
        self._clustered = bool(runner.scenario.engine.address)
        self._board = Board()
        self._calls = 0
        self._shown = 0.0
        self._workers: list[Any] = []
        self._queue: deque[list[StoredAttack]] = deque()
        self._past: dict[str, Any] = {}
        self._sees_files: bool | None = None
        self._starting: dict[int, Any] = {}
        self._placeless: dict[int, float] = {}
        self._warned = False
        self._running: dict[Any, _Running] = {}

    def _new(self, index: int) -> Any:
        runner, worker = self._runner, self._pool.take()
        self._starting[index] = worker.ready.remote(
            runner.scenario.model_dump_json(), runner.point, self._board.name
        )
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

        def store(attack: Attack) -> StoredAttack:
            interception = attack.interception
            if self._in_files(interception):
                return StoredAttack(attack)
            sent = interception.before
            before = put(dict(sent), sent.path if isinstance(sent, StoredTensors) else id(sent))
            light = put(held(replace(interception, before={})), interception.victim)
            nothing = interception.update.replace(tensors={}, buffers={})
            stub = replace(interception, before={}, update=nothing)
            past = [put(held(one), one.victim, self._past) for one in attack.history]
            return StoredAttack(replace(attack, interception=stub, history=()), light, before, past)

        self._queue += [[store(attack) for attack in group] for group in groups]
        self._fill()

    def _in_files(self, interception: Interception) -> bool:
        """Whether an interception is recorded, in files that all nodes find; tried once."""
        tensors = interception.before
        if not isinstance(tensors, StoredTensors):
            return False
        if self._sees_files is None:
            self._sees_files = not self._clustered or found_by_all(tensors.path, tensors.digest)
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
            self._calls += 1
            task = self._workers[index].perform.remote(group, self._calls)
            self._running[task] = _Running(group, index, time.monotonic(), self._calls)

    def _is_ready(self, index: int) -> bool:
        """Whether a worker has started; raises `EngineError` if it cannot load data or plugins."""
        started = self._starting.get(index)
        if started is not None and ray.wait([started], timeout=0)[0]:
            del self._starting[index]
            try:
                ray.get(started)
            except RayTaskError as error:
                where = places.node_of(self._workers[index]) or "its node"
                raise EngineError(
                    f"an attack worker cannot start on {where}: {brief(error.cause)}"
                ) from error
            except RayError:
                pass  # it died, as its attacks will
        return index not in self._starting

    def _find_places(self) -> None:
        """Queue again what waits for a worker without a place on a node, if another one is free.

        Raises:
            EngineError: No worker has had a place for long.
        """
        ready = {index for index in range(len(self._workers)) if self._is_ready(index)}
        now, limit = time.monotonic(), self._runner.scenario.engine.place_timeout
        self._placeless = {
            index: self._placeless.get(index, now)
            for index in self._starting
            if places.node_of(self._workers[index]) == ""
        }
        lacking = len(self._placeless)
        if not lacking:
            return
        if lacking == self._number:
            if now - max(self._placeless.values()) > limit:
                raise places.no_place("attack", self._number, 1.0, self._pool.gpus, limit)
        elif now - min(self._placeless.values()) > limit and not self._warned:
            self._warned = True
            self._observer("caution", text=places.fewer("attack", lacking, self._number, limit))
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
                self._board.forget(running.call)
                try:
                    outcomes = ray.get(task)
                except GroupFailed as wrapped:
                    # What Ray raises is of both kinds, and holds the worker's own exception.
                    outcomes = self._again(running, str(wrapped.args[0]))
                except RayError as error:
                    outcomes = self._lost(running, places.died(error, MACHINE_TOO_SMALL))
                self._fill()
                yield from outcomes
            yield from self._overdue()
            self._show()
            if not done and not wait:
                return

    def _show(self) -> None:
        """Tell the observer what runs where, at most every second, and at once when all is done."""
        now = time.monotonic()
        if self._running and now - self._shown < EVERY:
            return
        self._shown, rows = now, []
        for one in self._running.values():
            if one.worker in self._starting:
                continue
            latest = self._board.read(one.call)
            if latest is not None and latest != one.progress:
                one.progress = latest
                self._observer("progress", progress=latest)
            attacks = [stored.attack for stored in one.group]
            known = self._clustered and self._workers
            node = places.node_of(self._workers[one.worker]) if known else ""
            rows.append(self._runner.running(attacks, one.since, latest, node or ""))
        self._observer("running", running=tuple(rows), workers=self._number)

    def _overdue(self) -> Iterator[Outcome]:
        for task, running in list(self._running.items()):
            limit = self._runner.limit([one.attack for one in running.group])
            if not self._is_ready(running.worker):
                running.since = time.monotonic()
                continue
            over = time.monotonic() - running.since > limit + GRACE
            if over and not ray.wait([task], timeout=0)[0]:  # it may have ended during a round
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
        places.end_actors([self._workers[index]])
        self._workers[index] = self._new(index)

    def _lost(self, running: _Running, why: str, status: str = "failed") -> list[Outcome]:
        """Replace a worker that died, and record or repeat the attacks that it had."""
        self._is_ready(running.worker)  # raises if it could not start: another could not, either
        if self._workers:
            self._replace(running.worker)
        group, died = running.group, status == "failed"
        if died and group[0].deaths < (REPEATS if len(group) == 1 else 1):
            self._queue.appendleft([replace(one, deaths=one.deaths + 1) for one in group])
            return []
        if len(group) > 1:
            return self._again(running, why)
        (one,) = group
        outcome = self._runner.perform(replace(one.attack, refused=why))
        findings = tuple(replace(row, status=status) for row in outcome.findings)  # type: ignore[arg-type]
        return [replace(outcome, findings=findings)]

    @property
    def pending(self) -> int:
        """Attacks queued and running."""
        groups = (*self._queue, *(running.group for running in self._running.values()))
        return sum(map(len, groups))

    def cancel(self) -> None:
        """Drop the queue, leave idle workers to the pool and kill the others.

        Attacks that have ended can still be collected.
        """
        self._queue.clear()
        with contextlib.suppress(Exception):
            tasks = list(self._running)
            done = ray.wait(tasks, num_returns=len(tasks), timeout=0)[0] if tasks else []
            busy = {self._running[task].worker for task in {*tasks} - {*done}}
            self._running = {task: self._running[task] for task in done}
            idle = [index for index in range(len(self._workers)) if index not in busy]
            self._pool.leave([self._workers[index] for index in idle])
            self._workers = [self._workers[index] for index in sorted(busy)]
        places.end_actors(self._workers)
        self._workers, self._starting = [], {}
