"""The process of one adversary: it goes behind the walls, and only then imports the adversary."""

import os
import pickle
import pkgutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import FileFinder
from typing import Any, cast

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedsim import plugin, seeds
from fedsim.adversary import Adversary
from fedsim.isolation import claims, frames
from fedsim.isolation.facts import facts_of
from fedsim.isolation.walls import Walls, close_in, die_with_parent
from fedsim.job import Job
from fedsim.records import Observation, Reconstruction
from fedsim.references import look_in

CHANNEL = 3
"""The descriptor of the socket to the process that asked; 0, 1 and 2 lead nowhere."""

EVERY = 0.1
"""Seconds between two reports of progress of a job."""


Given = Adversary | tuple[str, dict[str, Any], str]
"""An adversary; or its name or reference, its settings, and their place in the scenario."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a child sets up before it goes behind the walls.

    Attributes:
        walls: The walls.
        folder: The temporary folder.
        path: `sys.path`.
        folders: Where modules are looked up first, see `fedsim.references.look_in`.
        plugins: Registered adversaries: "module:Class" by name.
    """

    walls: Walls
    folder: str
    path: Sequence[str]
    folders: Sequence[str]
    plugins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobGiven:
    """A `Job` as it is sent: seed and state of its generator, and its limits."""

    seed: int
    wide: bool
    state: torch.Tensor
    device: str
    budget: int | None
    seconds: float | None
    compiled: bool
    memory_mb: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """What a child is asked to do, sent as a pickle in this direction only.

    Attributes:
        what: "facts", "cautions" or "attack".
        adversary: The adversary, or what it is made from.
        arguments: Those of the method; of "attack", the observations.
        jobs: Resources of each attack.
        deterministic: Whether GPUs sum in a fixed order.
        dtype: The default dtype.
    """

    what: str
    adversary: Given
    arguments: tuple[Any, ...] = ()
    jobs: tuple[JobGiven, ...] = ()
    deterministic: bool = True
    dtype: torch.dtype = torch.float32


def main(channel: int) -> None:
    """Serve calls that come over a socket, until its other end is closed; does not return."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    _, content = frames.receive(channel, most=None)
    surroundings: Surroundings = pickle.loads(content)  # noqa: S301 - from the run's process
    _settle(channel, surroundings)
    with suppress(EOFError, OSError):
        while True:
            _, content = frames.receive(CHANNEL, most=None)
            _answer(content)
    os._exit(0)


def _settle(channel: int, given: Surroundings) -> None:
    """Close all other descriptors, look up modules as the other process does, and go in."""
    os.dup2(channel, CHANNEL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.closerange(CHANNEL + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(given.folder)
    tempfile.tempdir = given.folder
    sys.dont_write_bytecode = True
    sys.path[:] = given.path
    look_in(given.folders)
    _remember_names([*given.folders, *given.path])
    plugin.register("adversaries", given.plugins)
    close_in(given.walls)


def _remember_names(folders: Iterable[str]) -> None:
    """List folders of modules, which may not be listed any more behind the walls."""
    for folder in folders:
        finder = pkgutil.get_importer(folder)
        if isinstance(finder, FileFinder):
            finder.find_spec("_")  # lists it
            finder._fill_cache = lambda: None  # type: ignore[attr-defined]


def _answer(content: bytes) -> None:
    """Do what was asked, and send the result or the error."""
    try:
        call: Call = pickle.loads(content)  # noqa: S301 - likewise, and behind the walls
        adversary = _made(call.adversary)
        if call.what == "attack":
            with sdpa_kernel(SDPBackend.MATH):  # fused kernels have no second derivative
                found = _attack(adversary, call)
            frames.send(CHANNEL, frames.RESULT, claims.to_bytes(found))
        elif call.what == "facts":
            frames.send(CHANNEL, frames.RESULT, facts_of(adversary).model_dump_json().encode())
        elif call.what == "cautions":
            texts = adversary.cautions(*call.arguments)
            frames.send_json(CHANNEL, frames.RESULT, [str(one) for one in texts])
    except BaseException as error:
        # An adversary's own SystemExit and the like are its failure, not its process's end.
        text = str(error)[:2000].encode("utf-8", "backslashreplace").decode()
        kinds = [kind.__name__[:200] for kind in type(error).__mro__[:50]]
        frames.send_json(CHANNEL, frames.ERROR, {"kinds": kinds, "text": text})


def _made(given: Given) -> Adversary:
    if isinstance(given, Adversary):
        return given
    name, settings, where = given
    made = cast(Adversary, plugin.make("adversaries", name, settings, where))
    made.parts(where)  # so that an error in their settings names its place
    return made


def _attack(adversary: Adversary, call: Call) -> list[Reconstruction]:
    """Call the adversary as in the process of the run, with the same random numbers."""
    seen: list[Observation] = list(call.arguments[0])
    jobs = [_job(given, number) for number, given in enumerate(call.jobs)]
    frames.send_json(CHANNEL, frames.BEGAN, None)
    seeds.deterministic(call.deterministic)
    torch.set_default_dtype(call.dtype)
    with seeds.seeded(call.jobs[0].seed, wide=call.jobs[0].wide):
        if len(seen) == 1:
            found: list[Any] = [adversary.reconstruct(seen[0], jobs[0])]
        else:
            found = list(adversary.reconstruct_many(seen, jobs))
    method = "reconstruct" if len(seen) == 1 else "reconstruct_many"
    for one in found:
        if not isinstance(one, Reconstruction):
            name = type(one).__name__
            raise TypeError(f"{method} returned {name}, expected a Reconstruction")
    for number, job in enumerate(jobs):
        _report(number, job)
    return found


def _job(given: JobGiven, number: int) -> Job:
    rng = torch.Generator().manual_seed(given.seed)
    rng.set_state(given.state)
    last = [0.0]

    def report(step: int, objective: float) -> None:
        now = time.monotonic()
        if now - last[0] >= EVERY:
            last[0] = now
            _report(number, job)

    job = Job(
        rng,
        device=given.device,
        budget=given.budget,
        deadline=given.seconds,
        compiled=given.compiled,
        memory_mb=given.memory_mb,
        on_progress=report,
    )
    return job


def _report(number: int, job: Job) -> None:
    """Send how far a job is: its number, iterations, planned iterations, latest trace."""
    step, objective = job.trace[-1] if job.trace else (None, None)
    progress = [number, job.iterations, job.planned, step, objective]
    frames.send_json(CHANNEL, frames.PROGRESS, progress)
