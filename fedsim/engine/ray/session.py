"""The Ray session that client workers and attack workers share; nothing here needs Flower."""

import atexit
import contextlib
import logging
import math
import os
import signal
import threading
from typing import Any

import psutil
import ray
import torch
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedsim.engine import knock
from fedsim.engine.ray.local import on_loopback, sigterm_blocked, without_helpers
from fedsim.engine.ray.places import in_words, living_nodes, nodes_in_words
from fedsim.engine.session_folder import SessionFolder, kill_children
from fedsim.errors import EngineError
from fedsim.plugin import GROUPS
from fedsim.scenario.devices import device_of
from fedsim.scenario.settings import Engine

PATIENCE = 60.0
"""Seconds within which a node of a cluster must answer."""

_OURS: dict[int, str] = {}
"""The `engine.address` of the Ray session that fedsim opened and may end, by the process's id."""

_FOLDERS: dict[int, SessionFolder] = {}
"""The folder of the Ray session that fedsim started, by the process's id."""


def start_session(settings: Engine, clients: int, attackers: int) -> Engine:
    """Start Ray or join a cluster, unless this process has a session with enough resources.

    Args:
        settings: The `engine` table.
        clients: The number of client workers that will be started.
        attackers: The number of attack workers.

    Returns:
        The table with the share of a GPU that each worker reserves.

    Raises:
        EngineError: Ray cannot start, cannot be reached, has too few resources, or has a node of
            another version.
    """
    needs = _needs(settings, clients, attackers)
    address = knock(settings.address)
    ours = _OURS.get(os.getpid()) if ray.is_initialized() else None
    if ours is not None and (ours != address or (not ours and _short_of(needs))):
        _end_session()  # that of an earlier run, elsewhere or too small for this one
    if not ray.is_initialized():
        _start(settings, needs["CPU"], address)
    settings = _with_shares(settings, clients, attackers)
    needs = _needs(settings, clients, attackers)
    if kind := _short_of(needs):
        keys = ["workers"] * bool(clients) + ["attack_workers"]
        keys += [f"{kind.lower()}s_per_client"] * bool(clients)
        keys += ["gpus_per_attack"] * (kind == "GPU")
        there = ray.cluster_resources().get(kind, 0)  # type: ignore[no-untyped-call]
        raise EngineError(
            f"{clients} client workers and {attackers} attack workers need "
            f"{needs[kind]:g} {kind}s, and Ray has {there:g}. Lower one of "
            f"{', '.join(f'engine.{key}' for key in keys)}"
        )
    for what, number, cpus, gpus in (
        ("client", clients, settings.cpus_per_client, settings.gpus_per_client),
        ("attack", attackers, 1.0, settings.gpus_per_attack),
    ):
        if number and not any(
            cpus <= node.get("CPU", 0) and gpus <= node.get("GPU", 0) for _, node in living_nodes()
        ):
            raise EngineError(
                f"one {what} worker needs {in_words(cpus, gpus)} of one node, and no node of the "
                f"Ray cluster has as much: {nodes_in_words()}. Lower engine.*_per_{what}, or start "
                "a larger node"
            )
    if settings.address:
        check_nodes()
    return settings


def _needs(settings: Engine, clients: int, attackers: int) -> dict[str, float]:
    """What Ray reserves for all workers."""
    return {
        "CPU": clients * settings.cpus_per_client + attackers,
        "GPU": clients * settings.gpus_per_client + attackers * settings.gpus_per_attack,
    }


def _with_shares(settings: Engine, clients: int, attackers: int) -> Engine:
    """Give workers on GPUs, for which no share is stated, equal shares of those that Ray has.

    A share is 1 / n, with n workers on a GPU, so that each worker's share lies on one GPU.
    """
    stated = {"client": settings.gpus_per_client, "attack": settings.gpus_per_attack}
    number = {"client": clients, "attack": attackers}
    # A device with a number, such as "cuda:1", is chosen by the user and not by Ray.
    without = [
        what
        for what in ("client", "attack")
        if not stated[what] and device_of(settings, what) == torch.device("cuda")
    ]
    there = ray.cluster_resources().get("GPU", 0)  # type: ignore[no-untyped-call]
    free = int(there - sum(stated[what] * number[what] for what in stated))
    sharing = sum(number[what] for what in without)
    # Without a GPU the error tells what one worker needs.
    share = 1 / math.ceil(sharing / free) if free > 0 and sharing else 1.0
    share = math.floor(share * 1e4) / 1e4  # Ray counts in ten-thousandths
    return settings.model_copy(update={f"gpus_per_{what}": share for what in without})


def _start(settings: Engine, cpus: float, address: str) -> None:
    """Start or join a session, where `address` is the HOST:PORT that `settings.address` means."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of workers that are given up
    options: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": bool(os.environ.get("FEDSIM_DEBUG")),
        "logging_level": logging.ERROR,
    }
    # "local", or Ray would join whatever cluster it finds on this machine.
    options["address"] = address or "local"
    if not settings.address:
        # Logical CPUs: a place for every actor. The kernel shares the real ones.
        options["num_cpus"] = max(1, math.ceil(cpus))
        folder = _FOLDERS[os.getpid()] = SessionFolder()
        if folder.path is not None:
            options["_temp_dir"] = str(folder.path)
        atexit.register(_end_session)
    ours = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.ExitStack() as stack:
            if not settings.address:
                stack.enter_context(on_loopback())
                stack.enter_context(sigterm_blocked())
                stack.enter_context(without_helpers(shows_output=options["log_to_driver"]))
            ray.init(**options)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray's own leaves at once, without a report
        _OURS[os.getpid()] = address
    except Exception as error:  # Ray raises that very class where its node takes over 30 s to start
        where = address or "a local session"
        reason = " ".join(str(error).split()).rstrip(".")
        fix = (
            "See whether `ray status` lists its nodes there, and start every node from the same "
            "image or the same installation as fedsim"
            if settings.address
            else "Try again, or set engine.workers = 1 to run without Ray"
        )
        raise EngineError(f"Ray cannot start or reach {where}: {reason}. {fix}") from error


def _short_of(needs: dict[str, float]) -> str:
    """The resource that actors would wait for for ever; empty if Ray has enough."""
    there: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return next((kind for kind, need in needs.items() if need > there.get(kind, 0)), "")


def session_folder() -> str:
    """The folder of the Ray session that fedsim started in this process; "" if there is none."""
    folder = _FOLDERS.get(os.getpid())
    return str(folder.path) if folder is not None and folder.path is not None else ""


def kill_session() -> None:
    """Kill all processes of the Ray session that fedsim started, before a program exits.

    `ray.shutdown` takes many seconds, and without it some of Ray's agents may outlive the program.
    """
    started = "" in _OURS.values()
    if started:
        kill_children(psutil.Process())
    _remove_folder()


def _end_session() -> None:
    """Leave the Ray session that fedsim opened in this process, and remove its folder."""
    if _OURS.pop(os.getpid(), None) is not None:
        ray.shutdown()
    _remove_folder()


def _remove_folder() -> None:
    if folder := _FOLDERS.pop(os.getpid(), None):
        folder.close()


def check_nodes() -> None:
    """Compare the versions on every node of the connected cluster with this process's.

    Findings are the same wherever a client or an attack runs only if the code is the same. Ray
    itself compares its own version and Python's when a node joins.

    Raises:
        EngineError: a node has another version of fedsim, of a library that results depend on, or
            of a package with plugins, lacks one of them, or does not answer.
    """
    groups = [*GROUPS.values()]

    # A nested function travels by value: a node that lacks fedsim can run it as well.
    def versions() -> dict[str, str]:
        import contextlib
        import hashlib
        import importlib.metadata
        import importlib.util
        from pathlib import Path

        found = {"fedsim": ""}
        with contextlib.suppress(ImportError):
            import fedsim

            found["fedsim"] = fedsim.__version__
        for name in ("torch", "numpy", "flwr"):
            try:
                # CPU and CUDA builds ("2.13.0+cpu") may be mixed in one cluster.
                found[name] = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                found[name] = ""
        for group in groups:
            for point in importlib.metadata.entry_points(group=group):
                if point.dist and point.dist.name != "fedsim":
                    found[point.dist.name] = point.dist.version
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
            if there.get(name, "") != version:
                found = f"has {name} {there[name]}" if there.get(name) else f"has no {name}"
                raise EngineError(
                    f"{where} {found}, and this process has {version}. Start every node of the "
                    "cluster from the same image or the same installation"
                )
