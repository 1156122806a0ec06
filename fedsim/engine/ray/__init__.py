"""The engine that runs groups of clients, and attacks beside them, on long-lived Ray actors."""

import contextlib
import logging
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import psutil
import ray
import torch
from flwr.app import Context, Error, Message, RecordDict
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.attacking.attack import AttackRunner
from fedsim.attacking.executor import Observer
from fedsim.engine import Engine, knock, workers
from fedsim.engine.ray.attacks import RayExecutor
from fedsim.errors import EngineError
from fedsim.federation import federate
from fedsim.federation.client import app
from fedsim.federation.grid import RAISED, LocalGrid, answer
from fedsim.runs.ledger import Ledger
from fedsim.scenario import Scenario
from fedsim.scenario.built import BuiltRun

SHARE = 64 * 2**20
"""Bytes of models in one call of an actor, and in its answer; at least one model."""

PATIENCE = 60.0
"""Seconds within which a node of a cluster must answer."""

_STARTED: set[int] = set()
"""The id of this process, while it has a Ray session that fedsim started and may end."""


class ClientWorker:
    """An actor that answers groups of messages, and keeps data and model between them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    def answer(
        self, messages: list[Message], contexts: list[Context]
    ) -> list[tuple[Message, RecordDict]]:
        """The replies, each with the state that the client has after it."""
        return [
            (answer(app, message, context), context.state)
            for message, context in zip(messages, contexts, strict=True)
        ]


class RayGrid(LocalGrid):
    """Sends messages to actors in groups, so that the global model is pickled once a group.

    A worker that dies is replaced and gets its messages again one by one, so that the client that
    killed it is identified and the others answer.

    Args:
        clients: The number of clients.
        pool: The actors.
        new: Makes another actor.
    """

    def __init__(self, clients: int, pool: list[Any], new: Any) -> None:
        super().__init__(clients)
        self._pool, self._new = pool, new

    def exchange(self, messages: Sequence[Message]) -> Iterator[Message]:
        """Replies in the order of the messages; two groups an actor are under way at a time."""
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
        """Split messages into groups, by the size of their models and evenly over the actors."""
        sent = messages[0].content.array_records.values() if messages else ()
        size = max(1, SHARE // max(1, sum(record.count_bytes() for record in sent)))
        size = min(size, math.ceil(len(messages) / len(self._pool)) or 1)
        return [messages[at : at + size] for at in range(0, len(messages), size)]

    def _again(self, index: int, message: Message) -> tuple[Message, RecordDict]:
        """Send a message alone, to a new worker if the old one has died."""
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


class RayEngine(Engine):
    """Keeps one Ray session and its client workers for all points of a run."""

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
        if scenario.engine.address:
            check_nodes()
        self._pool = [self._new_client() for _ in range(self._clients)]

    def _start(self) -> None:
        engine = self._settings
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        options: dict[str, Any] = {
            "include_dashboard": False,
            "log_to_driver": bool(os.environ.get("FEDSIM_DEBUG")),
            "logging_level": logging.ERROR,
        }
        # "local", or Ray would join whatever cluster it finds on this machine.
        options["address"] = engine.address or "local"
        if not engine.address:
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
        """Why actors would wait for resources for ever; empty if Ray has enough."""
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
        cpus, gpus = self._settings.cpus_per_client, self._settings.gpus_per_client
        return ray.remote(ClientWorker).options(num_cpus=cpus, num_gpus=gpus).remote()

    def run(self, built: BuiltRun, ledger: Ledger, point: str, observer: Observer) -> None:
        """Run attacks on actors of their own while the clients' actors train."""
        runner = AttackRunner(built, point)
        grid = RayGrid(built.scenario.training.clients, self._pool, self._new_client)
        gpus = built.scenario.engine.gpus_per_attack
        executor = RayExecutor(runner, self._attackers, gpus, observer)
        try:
            federate.run(built, ledger, grid, executor, point, observer)
        finally:
            executor.cancel()

    def close(self) -> None:
        """Kill the actors. The session stays for the next run of this process."""
        for actor in self._pool:
            with contextlib.suppress(Exception):
                ray.kill(actor)


def kill_session() -> None:
    """Kill all processes of the Ray session that fedsim started, before a program exits.

    `ray.shutdown` takes many seconds, and without it some of Ray's agents may outlive the program.
    """
    for process in psutil.Process().children(recursive=True) if _STARTED else ():
        with contextlib.suppress(psutil.Error):
            process.kill()


def check_nodes() -> None:
    """Compare the versions on every node of the connected cluster with this process's.

    Findings are the same wherever a client or an attack runs only if the code is the same. Ray
    itself compares its own version and Python's when a node joins.

    Raises:
        EngineError: a node has another version of fedsim or of a library that results depend on,
            lacks one of them, or does not answer.
    """

    # A nested function travels by value: a node that lacks fedsim can run it as well.
    def versions() -> dict[str, str]:
        import hashlib
        import importlib.metadata
        import importlib.util
        from pathlib import Path

        found = {}
        for name in ("fedsim", "torch", "numpy", "flwr"):
            try:
                # CPU and CUDA builds ("2.13.0+cpu") may be mixed in one cluster.
                found[name] = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                found[name] = ""
        sources = hashlib.sha256()
        for name in ("fedsim", "adversaries", "defenses"):
            package = importlib.util.find_spec(name)
            for folder in (package.submodule_search_locations or []) if package else []:
                for path in sorted(
                    p for p in Path(folder).rglob("*") if p.suffix in (".py", ".toml")
                ):
                    sources.update(path.read_bytes())
        if found["fedsim"]:
            found["fedsim"] += f" (sources {sources.hexdigest()[:8]})"
        return found

    here = versions()
    addresses = {n["NodeID"]: n["NodeManagerAddress"] for n in ray.nodes() if n["Alive"]}  # type: ignore[no-untyped-call]
    asked = {
        node: ray.remote(versions)
        .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote()
        for node in addresses
    }
    for node, task in asked.items():
        where = f"the Ray node {addresses[node]}"
        try:
            there = ray.get(task, timeout=PATIENCE)
        except GetTimeoutError as error:
            raise EngineError(
                f"{where} did not answer within {PATIENCE:g} s. Look at its log, or stop it"
            ) from error
        except RayError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            raise EngineError(f"{where} cannot run anything: {reason}") from error
        for name, version in here.items():
            if there[name] != version:
                found = f"has {name} {there[name]}" if there[name] else f"has no {name}"
                raise EngineError(
                    f"{where} {found}, and this process has {version}. Start every node of the "
                    "cluster from the same image or the same installation"
                )
