"""The Ray engine: groups of clients, and attacks beside them, on long-lived actors."""

import contextlib
import functools
import logging
import math
import os
import signal
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from ray.exceptions import RayError

from fedsim.attack import Attack, Bench, GroupFailed, Outcome, one_by_one
from fedsim.campaign import Observer
from fedsim.client import app
from fedsim.engine import Engine, knock, workers
from fedsim.errors import EngineError
from fedsim.federation import place, play
from fedsim.grid import RAISED, LocalGrid, answer
from fedsim.ledger import Ledger
from fedsim.progress import Board, watched
from fedsim.records import Interception
from fedsim.scenario import Scenario

__all__ = ["RayEngine", "RayExecutor", "RayGrid"]

_STARTED: set[int] = set()
"""This process, while it has a Ray session that fedsim started and may end."""

SHARE = 64 * 2**20
"""Bytes of models that an actor is sent, and answers, at a time; at least one model."""

GRACE = 10.0
"""Seconds past its limit after which the worker of an attack that does not stop is killed."""


class _ClientWorker:
    """Answers groups of messages; keeps data and model between them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def answer(
        self, messages: list[Message], contexts: list[Context]
    ) -> list[tuple[Message, RecordDict]]:
        """Replies, each with the client's state after it."""
        return [
            (answer(app, message, context), context.state)
            for message, context in zip(messages, contexts, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Stored:
    """An attack whose interceptions and global arrays lie in the object store."""

    attack: Attack
    caught: Any
    before: Any
    past: list[Any]

    def whole(self) -> Attack:
        """The attack with everything in it again."""
        caught: Interception = replace(ray.get(self.caught), before=ray.get(self.before))
        return replace(self.attack, interception=caught, history=tuple(ray.get(self.past)))


class _AttackWorker:
    """Performs attacks, a group at a time."""

    def __init__(self, scenario: str, point: str, folder: str, index: int, board: str) -> None:
        torch.set_num_threads(1)
        self._bench = Bench(Scenario.model_validate_json(scenario), point, folder)
        self._tell = functools.partial(Board.write, board, index)
        self._bench.warm()

    def ready(self) -> None:
        """Answers once data and model are loaded; until then no attack's time runs."""

    def perform(self, group: list[_Stored]) -> list[Outcome]:
        """A group of attacks; raises `GroupFailed`."""
        with watched(self._bench.progress, self._tell):
            return self._bench.perform_together([one.whole() for one in group])


class RayEngine(Engine):
    """One Ray session, kept for all points of a run."""

    def __init__(self, scenario: Scenario) -> None:
        self._clients = workers(scenario)
        asked = scenario.engine.attack_workers
        self._attackers = self._clients if asked == "auto" else asked
        self._settings = scenario.engine
        if scenario.engine.address:
            knock(scenario.engine.address)
        if ray.is_initialized() and _STARTED and self._shortage():
            ray.shutdown()  # the session of an earlier run, too small for this one
            _STARTED.clear()
        if not ray.is_initialized():
            self._start()
        if shortage := self._shortage():
            raise EngineError(shortage)
        self._pool = [self._new_client() for _ in range(self._clients)]

    def _start(self) -> None:
        engine = self._settings
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {
            "include_dashboard": False,
            "log_to_driver": bool(os.environ.get("FEDSIM_DEBUG")),
            "logging_level": logging.ERROR,
        }
        if engine.address:
            options["address"] = engine.address
        else:
            # Logical CPUs: a place for every actor. The kernel shares the real ones.
            options["num_cpus"] = max(1, math.ceil(self._needs()["CPU"]))
        try:
            ray.init(**options)
            if not engine.address:
                _STARTED.add(os.getpid())
        except (RayError, ConnectionError, OSError, RuntimeError, ValueError) as error:
            where = engine.address or "a local session"
            raise EngineError(f"Ray cannot start or reach {where}: {error}") from error

    def _needs(self) -> dict[str, float]:
        engine, attackers = self._settings, self._attackers
        return {
            "CPU": self._clients * engine.cpus_per_client + attackers,
            "GPU": self._clients * engine.gpus_per_client + attackers * engine.gpus_per_attack,
        }

    def _shortage(self) -> str:
        """What Ray lacks, so that an actor would wait for ever; empty where there is room."""
        there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        for kind, need in self._needs().items():
            if need > there.get(kind, 0):
                keys = ["workers", "attack_workers", f"{kind.lower()}s_per_client"]
                keys += ["gpus_per_attack"] * (kind == "GPU")
                return (
                    f"{self._clients} client workers and {self._attackers} attack workers need "
                    f"{need:g} {kind}s, and Ray has {there.get(kind, 0):g}. Lower one of "
                    f"{', '.join(f'engine.{key}' for key in keys)}"
                )
        return ""

    def _new_client(self) -> Any:
        resources = {
            "num_cpus": self._settings.cpus_per_client,
            "num_gpus": self._settings.gpus_per_client,
        }
        return ray.remote(_ClientWorker).options(**resources).remote()

    def play(self, scenario: Scenario, ledger: Ledger, point: str, observer: Observer) -> None:
        """Clients on their actors; attacks on theirs, while training goes on."""
        task = self.task(scenario)
        bench = Bench(scenario, point, place("artifacts", point), task=task)
        grid = RayGrid(scenario.training.clients, self._pool, self._new_client)
        executor = RayExecutor(bench, self._attackers, scenario.engine.gpus_per_attack, observer)
        try:
            play(scenario, ledger, grid, executor, point, observer, task=task)
        finally:
            executor.cancel()

    def close(self) -> None:
        """Kill the actors; the session stays for the process's next run."""
        for actor in self._pool:
            with contextlib.suppress(Exception):
                ray.kill(actor)


def kill_session() -> None:
    """Kill the session that fedsim started, all its processes; for a program about to exit.

    Saying goodbye (`ray.shutdown`) takes Ray many seconds, and a program that just leaves may leave
    some of Ray's agents behind.
    """
    if not _STARTED:
        return
    if not Path("/proc/self/stat").exists():
        ray.shutdown()
        return
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children[parent].append(int(stat.parent.name))
    doomed = list(children[os.getpid()])
    for pid in doomed:  # grows while it is walked
        doomed += children[pid]
    for pid in doomed:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


class RayGrid(LocalGrid):
    """Messages go to actors in groups, the global model pickled once a group.

    A worker that dies is replaced and its clients are asked again, one by one, so that the client
    that killed it is named and the others are not lost.
    """

    def __init__(self, clients: int, pool: list[Any], new: Any) -> None:
        super().__init__(clients)
        self._pool, self._new = pool, new

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        shares, pool = self._shares(messages), self._pool
        tasks: deque[Any] = deque()
        for number, share in enumerate(shares):
            for ahead in shares[number + len(tasks) : number + 2 * len(pool)]:
                contexts = [self.contexts[m.metadata.dst_node_id] for m in ahead]
                actor = pool[(number + len(tasks)) % len(pool)]
                tasks.append(actor.answer.remote(ahead, contexts))
            try:
                pairs = ray.get(tasks.popleft())
            except RayError:
                pairs = [self._again(number % len(pool), message) for message in share]
            for reply, state in pairs:
                self.contexts[reply.metadata.src_node_id].state = state
                yield reply

    def _shares(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Messages as they go to the actors in turn: many small models or a few large ones."""
        sent = messages[0].content.array_records.values() if messages else ()
        size = max(1, SHARE // max(1, sum(record.count_bytes() for record in sent)))
        size = min(size, math.ceil(len(messages) / len(self._pool)) or 1)
        return [messages[at : at + size] for at in range(0, len(messages), size)]

    def _again(self, index: int, message: Message) -> tuple[Message, RecordDict]:
        """Ask one client alone, on a new worker if the old one is gone."""
        context = self.contexts[message.metadata.dst_node_id]
        for _ in range(2):
            try:
                pair: tuple[Message, RecordDict] = ray.get(
                    self._pool[index].answer.remote([message], [context])
                )[0]
                return pair
            except RayError as error:
                last = error
                self._pool[index] = self._new()
        reason = f"its worker died: {type(last).__name__}"
        return Message(Error(code=RAISED, reason=reason), reply_to=message), context.state


@dataclass(slots=True)
class _Running:
    group: list[_Stored]
    worker: int
    since: float


class RayExecutor:
    """Attacks on workers of their own, a group at a time each; the rest wait in the object store.

    A group that fails, or that its worker does not survive, is queued again one by one.
    """

    def __init__(
        self,
        bench: Bench,
        number: int,
        gpus: float,
        observer: Observer = lambda event, **fields: None,
    ) -> None:
        self._bench, self._observer = bench, observer
        self._number, self._gpus = number, gpus
        self._board = Board()
        self._workers: list[Any] = []
        self._queue: deque[list[_Stored]] = deque()
        self._past: dict[int, Any] = {}
        self._starting: dict[int, Any] = {}
        self._running: dict[Any, _Running] = {}

    def _new(self, index: int) -> Any:
        bench = self._bench
        worker = (
            ray.remote(_AttackWorker)
            .options(num_cpus=1, num_gpus=self._gpus)
            .remote(
                bench.scenario.model_dump_json(),
                bench.point,
                bench.folder,
                index,
                self._board.folder,
            )
        )
        self._starting[index] = worker.ready.remote()  # type: ignore[attr-defined]
        return worker

    def submit(self, attacks: Sequence[Attack]) -> None:
        """Put each interception, and a round's arrays, into the object store once."""
        if not self._workers and attacks:
            self._workers = [self._new(index) for index in range(self._number)]
        stored: dict[int, Any] = {}

        def put(value: Any, key: int) -> Any:
            if key not in stored:
                stored[key] = ray.put(value)
            return stored[key]

        def store(attack: Attack) -> _Stored:
            caught = attack.interception
            before = put(dict(caught.before), id(caught.before))
            light = put(replace(caught, before={}), id(caught))
            stub = replace(caught, before={}, update=caught.update.replace(tensors={}, buffers={}))
            past = [self._past.get(id(one)) or self._keep(one) for one in attack.history]
            alone = replace(attack, interception=stub, history=())
            return _Stored(alone, light, before, past)

        for group in self._bench.groups(attacks):
            self._queue.append([store(attack) for attack in group])
        self._fill()

    def _keep(self, earlier: Interception) -> Any:
        """An earlier interception as an object that every later attack refers to."""
        self._past[id(earlier)] = ray.put(earlier)
        return self._past[id(earlier)]

    def _fill(self) -> None:
        busy = {running.worker for running in self._running.values()}
        for index, worker in enumerate(self._workers):
            if index not in busy and self._queue:
                group = self._queue.popleft()
                task = worker.perform.remote(group)
                self._running[task] = _Running(group, index, time.monotonic())

    def collect(self, *, wait: bool) -> Iterator[Outcome]:
        """Outcomes as they come; waits in short steps, so that Ctrl-C is heard."""
        while self._running:
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
            limit = self._bench.limit([one.attack for one in running.group])
            ready = self._starting.get(running.worker)
            if ready is not None:
                if not ray.wait([ready], timeout=0)[0]:
                    running.since = time.monotonic()
                    continue
                del self._starting[running.worker]
            if time.monotonic() - running.since > limit + GRACE:
                del self._running[task]
                outcomes = self._lost(
                    running, f"over its limit of {limit:g} s, and deaf to being stopped", "timeout"
                )
                self._fill()
                yield from outcomes

    def _again(self, running: _Running, why: str) -> list[Outcome]:
        """Queue a failed group one by one, before all others; no outcome yet."""
        stored = running.group
        attacks = one_by_one([one.attack for one in stored], why)
        groups = [
            [replace(one, attack=attack)] for one, (attack,) in zip(stored, attacks, strict=True)
        ]
        self._queue.extendleft(reversed(groups))
        return []

    def _lost(self, running: _Running, why: str, status: str = "failed") -> list[Outcome]:
        """A new worker in the place of one that is gone, and rows for the attack that it had."""
        if self._workers:
            with contextlib.suppress(Exception):
                ray.kill(self._workers[running.worker])
            self._workers[running.worker] = self._new(running.worker)
        if len(running.group) > 1:
            return self._again(running, why)
        outcome = self._bench.perform(replace(running.group[0].attack, refused=why))
        findings = tuple(replace(row, status=status) for row in outcome.findings)  # type: ignore[arg-type]
        return [replace(outcome, findings=findings)]

    @property
    def pending(self) -> int:
        """Attacks queued and running."""
        groups = (*self._queue, *(running.group for running in self._running.values()))
        return sum(map(len, groups))

    def cancel(self) -> None:
        """Drop the queue and kill the workers; attacks that have ended can still be collected."""
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
