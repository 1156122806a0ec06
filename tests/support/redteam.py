"""Adversaries that mean harm. A test copies this file beside a scenario, with `places.py`.

Each trick looks for the victim's examples or does damage (`redteam_damage.py`). What it finds is in
its diagnostics; it claims nothing else.
"""

import ctypes
import gc
import importlib
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fedsim.adversary import Adversary, Job
from fedsim.errors import Cancelled
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction
from fedsim.seeds import derive

try:
    from places import DATA, RUN  # type: ignore[import-not-found]
    from redteam_damage import TRICKS, trick  # type: ignore[import-not-found]
except ImportError:  # here, not beside a scenario
    from support.redteam_damage import TRICKS, trick

    DATA = RUN = ""

CANARY = 0.7310585975646973
"""The first pixel of each image of the test's data."""

GUESSES = 300
"""Seeds that are tried."""

SECRETS = {"Truth", "Interception", "BuiltRun", "Scenario", "Images", "AttackRunner", "Scorer"}
"""Classes that no adversary should meet an instance of."""


class RedTeam(Adversary):
    """Tries one trick, and claims what it found."""

    name: ClassVar[str] = "red-team"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts"})

    trick: str = "heap"

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        try:
            found = TRICKS[self.trick](seen, job)
        except Cancelled:
            raise
        except Exception as denied:
            return Reconstruction(label_counts={}, diagnostics={"denied": repr(denied)})
        if isinstance(found, Reconstruction):
            return found
        return Reconstruction(label_counts={}, diagnostics={"found": found} if found else {})


# --- looking for the truth ---------------------------------------------------------------------


def _is_secret(value: Any) -> bool:
    if type(value).__name__ in SECRETS and type(value).__module__.startswith("fedsim"):
        return True
    if isinstance(value, torch.Tensor) and value.numel() and value.dtype == torch.float32:
        return bool((value.detach() == CANARY).any())
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and (value == CANARY).any()


@trick
def heap(seen: Observation, job: Job) -> Any:
    return [repr(type(one)) for one in gc.get_objects() if _is_secret(one)]


@trick
def frames(seen: Observation, job: Job) -> Any:
    found, frame = [], sys._getframe()
    while frame:
        for value in (*frame.f_locals.values(), *frame.f_globals.values()):
            found += [repr(type(value))] if _is_secret(value) else []
        frame = frame.f_back  # type: ignore[assignment]
    return found


@trick
def proc_self(seen: Observation, job: Job) -> Any:
    return Path("/proc/self/environ").read_text()


@trick
def proc_parents(seen: Observation, job: Job) -> Any:
    return Path(f"/proc/{os.getppid()}/maps").read_text()


@trick
def every_process(seen: Observation, job: Job) -> Any:
    for number in range(1, 70_000):
        try:
            return Path(f"/proc/{number}/cmdline").read_bytes()
        except FileNotFoundError:
            continue
    return None


@trick
def parents_memory(seen: Observation, job: Job) -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(8)
    pair = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
    got = libc.process_vm_readv(os.getppid(), pair, 1, pair, 1, 0)
    return got if got > 0 else libc.ptrace(16, os.getppid(), 0, 0) == 0


@trick
def open_files(seen: Observation, job: Job) -> Any:
    found = []
    for number in range(4, 4096):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(number)
    return found


@trick
def environment(seen: Observation, job: Job) -> Any:
    return [name for name in os.environ if "FEDSIM" in name or name == "HOME"]


@trick
def data_file(seen: Observation, job: Job) -> Any:
    return np.load(DATA)["y"].tolist()


@trick
def run_folder(seen: Observation, job: Job) -> Any:
    return [str(path) for path in Path(RUN).rglob("*")]


@trick
def originals(seen: Observation, job: Job) -> Any:
    victims = [
        f"{RUN}/artifacts/r{round:04d}-c{client:04d}" for round in (1, 2) for client in (0, 1)
    ]
    found = []
    for victim in victims:
        for name in ("label/original.png", "dlg/original.png", "dlg/originals.png"):
            try:
                found.append(len(Path(victim, name).read_bytes()))
            except FileNotFoundError:
                continue
    return found


@trick
def scenario_file(seen: Observation, job: Job) -> Any:
    return Path(RUN, "scenario.toml").read_text()


@trick
def seed_of_generator(seen: Observation, job: Job) -> Any:
    drawn = job.rng.initial_seed()
    for seed in range(GUESSES):
        for round in (1, 2):
            for client in (0, 1):
                if derive(seed, "attack.seed-of-generator", round, client) == drawn:
                    return [seed] if seed else None  # threat.seed, which is public
    return None


@trick
def seed_of_weights(seen: Observation, job: Job) -> Any:
    images = importlib.import_module("fedsim.tasks.images").Images
    assert seen.model is not None
    mine = {name: value.detach() for name, value in seen.model.module.named_parameters()}
    for seed in range(GUESSES):
        task = images(seed=seed, clients=2, model="mlp", data="digits")
        theirs = dict(task.module().named_parameters())
        if all(torch.equal(mine[name], theirs[name]) for name in mine):
            return [seed]
    return None


@trick
def import_caches(seen: Observation, job: Job) -> Any:
    found = []
    for name, module in list(sys.modules.items()):
        for key, value in list(vars(module).items()):
            found += [f"{name}.{key}"] if _is_secret(value) else []
    return found


@trick
def through_the_model(seen: Observation, job: Job) -> Any:
    left: list[Any] = [seen]
    known: set[int] = set()
    found = []
    while left and len(known) < 20_000:
        one = left.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        found += [repr(type(one))] if _is_secret(one) else []
        left += gc.get_referents(one)
    return found
