"""The engine that runs groups of clients, and attacks beside them, on long-lived Ray actors."""

import gc
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
import torch
from flwr.app import Error, Message, RecordDict
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.executor import Observer
from fedsim.engine import Engine, attack_workers, workers
from fedsim.engine.ray import places, session
from fedsim.engine.ray.attacks import RayExecutor
from fedsim.engine.ray.pool import AttackPool
from fedsim.engine.ray.transfer import Packed, pack, unpack
from fedsim.federation import federate
from fedsim.federation.arrays import bytes_of
from fedsim.federation.client import answers
from fedsim.federation.grid import MACHINE_TOO_SMALL, RAISED, LocalGrid
from fedsim.federation.session import told
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun
from fedsim.scenario.settings import Engine as EngineSettings
from fedsim.seeds import held

SHARE = 64 * 2**20
"""Bytes of models in one call of an actor, and in its answer; at least one model."""


class ClientWorker:
    """An actor that answers groups of messages, and keeps data and model between them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        gc.freeze()  # what is there already is garbage only when the process ends

    def answer(self, asked: Packed) -> Packed:
        """Answer messages, each with its client's context.

        Returns:
            The replies, each with the state that the client has after it, and warnings.
        """
        messages, contexts = unpack(asked)
        warned = list[str]()
        with held(), told(warned.append):
            replies = [*answers(messages, contexts)]
        pairs = [(reply, c.state) for reply, c in zip(replies, contexts, strict=True)]
        return pack((pairs, warned))


class _GivenUp(RayError):
    """An actor had no place for long, and another one does its work."""


class RayGrid(LocalGrid):
    """Sends messages to actors in groups, so that the global model is pickled once a group.

    A worker that dies is replaced and gets its messages again one by one, so that the client that
    killed it is identified and the others answer. If a node was lost and Ray has no place for the
    new worker, another worker does its work from then on.

    Args:
        clients: The number of clients.
        pool: The actors.
        new: Makes another actor.
        settings: What each actor reserves, and how long it may be without a place.
        warn: Called with each warning: those of actors, and if fewer than asked have a place.
    """

    def __init__(
        self,
        clients: int,
        pool: list[Any],
        new: Callable[[], Any],
        settings: EngineSettings,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(clients)
        self._pool, self._new = pool, new
        self._settings, self._warn, self._told = settings, warn, set[str]()
        self._placeless: dict[int, float] = {}

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies in the order of the messages; two groups an actor are under way at a time.

        Raises:
            EngineError: No actor has had a place on a node for long.
        """
        shares, pool = self._shares(messages), self._pool
        tasks: deque[Any] = deque()
        for number, share in enumerate(shares):
            for ahead in shares[number + len(tasks) : number + 2 * len(pool)]:
                actor = pool[(number + len(tasks)) % len(pool)]
                tasks.append(self._ask(actor, ahead))
            try:
                pairs = self._wait(number % len(pool), tasks.popleft())
            except RayError:
                pairs = [self._again(number % len(pool), message) for message in share]
            for reply, state in pairs:
                self.contexts[reply.metadata.src_node_id].state = state
                yield reply

    def _ask(self, actor: Any, messages: Sequence[Message]) -> Any:
        """Send a group of messages to an actor; returns the task."""
        contexts = [self.contexts[m.metadata.dst_node_id] for m in messages]
        return actor.answer.remote(pack((messages, contexts)))

    def _wait(self, index: int, task: Any) -> list[tuple[Message, RecordDict]]:
        """What a task of an actor returns; raises `RayError` if the actor ends or is given up."""
        actor = self._pool[index]
        while not ray.wait([task], timeout=1.0)[0]:
            self._find_places()
            if self._pool[index] is not actor:
                raise _GivenUp
        self._placeless.pop(index, None)
        pairs, warned = unpack(ray.get(task))
        for text in warned:
            if text not in self._told:  # by another actor
                self._told.add(text)
                self._warn(text)
        return pairs  # type: ignore[no-any-return]

    def _find_places(self) -> None:
        """Replace actors that have ended, and give up those that have no place for long."""
        now, sound, since = time.monotonic(), list[Any](), dict[int, float]()
        for index, actor in enumerate(self._pool):
            node = places.node_of(actor)
            if node is None:
                self._pool[index] = self._new()
            if node:
                sound.append(actor)
            else:
                since[index] = self._placeless.get(index, now)
        self._placeless = since
        limit, number = self._settings.place_timeout, len(self._pool)
        if not since or now - max(since.values()) <= limit:
            return
        if not sound:
            cpus, gpus = self._settings.cpus_per_client, self._settings.gpus_per_client
            raise places.no_place("client", number, cpus, gpus, limit)
        self._warn(places.fewer("client", len(since), number, limit))
        places.end_actors(self._pool[index] for index in since)
        for index in since:
            self._pool[index] = sound[index % len(sound)]

    def _shares(self, messages: Sequence[Message]) -> list[Sequence[Message]]:
        """Split messages into groups, by the size of their models and evenly over the actors."""
        sent = messages[0].content.array_records.values() if messages else ()
        size = max(1, SHARE // max(1, sum(map(bytes_of, sent))))
        size = min(size, math.ceil(len(messages) / len(self._pool)) or 1)
        return [messages[at : at + size] for at in range(0, len(messages), size)]

    def _again(self, index: int, message: Message) -> tuple[Message, RecordDict]:
        """Send a message alone, to a new worker if the old one has died."""
        context = self.contexts[message.metadata.dst_node_id]
        tries, last = 0, RayError()
        while tries < 2:
            actor = self._pool[index]
            try:
                return self._wait(index, self._ask(actor, [message]))[0]
            except _GivenUp:
                continue
            except RayTaskError as error:  # it could not even import what the client needs
                cause = error.cause
                failure = Error(code=RAISED, reason=f"{type(cause).__name__}: {cause}")
                return Message(failure, reply_to=message), context.state
            except RayError as error:
                tries += 1
                if not isinstance(last, OutOfMemoryError):  # which says more than what came of it
                    last = error
                if self._pool[index] is actor:
                    self._pool[index] = self._new()
        reason = places.died(last, MACHINE_TOO_SMALL)
        return Message(Error(code=RAISED, reason=reason), reply_to=message), context.state


class RayEngine(Engine):
    """Keeps one Ray session and its workers for all points of a run."""

    def __init__(self, scenario: Scenario) -> None:
        self._clients = workers(scenario)
        self._attackers = attack_workers(scenario)
        self._settings = session.start_session(scenario.engine, self._clients, self._attackers)
        self._attack_pool = AttackPool(self._settings.gpus_per_attack)
        self._pool = [self._new_client() for _ in range(self._clients)]

    def _new_client(self) -> Any:
        cpus, gpus = self._settings.cpus_per_client, self._settings.gpus_per_client
        return ray.remote(ClientWorker).options(num_cpus=cpus, num_gpus=gpus).remote()

    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Run attacks on actors of their own while the clients' actors train."""
        runner = AttackRunner(built, point)
        grid = RayGrid(
            built.scenario.training.clients,
            self._pool,
            self._new_client,
            self._settings,
            lambda text: observer("caution", text=text),
        )
        executor = RayExecutor(runner, self._attackers, self._attack_pool, observer)
        try:
            federate.run(built, ledger, grid, executor, point, observer)
        finally:
            executor.cancel()

    def close(self) -> None:
        """Kill the actors. The session stays for the next run of this process."""
        self._attack_pool.close()
        places.end_actors(self._pool)
