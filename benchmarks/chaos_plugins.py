"""A client and an attack that fail in given ways, for the scenarios of chaos.py."""

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from fedsim.adversary import Adversary, Job
from fedsim.defense import ClientState, Defense, Training
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction, Update


class Client(Defense):
    """A third of all clients' rounds fail; which ones follows from the seed.

    how: "raises", "nan" (a value of the update), "names" (an array too many); "hangs" and "once"
        (raises): only the first of them in a run, which makes a file of that name in `marks`.
    """

    name: ClassVar[str] = "chaos-client"

    how: Literal["raises", "nan", "names", "hangs", "once"]
    marks: str = ""

    def prepare(self, training: Training) -> Training:
        fails = training.rng.initial_seed() % 3 == 0
        if fails and (self.how == "raises" or (self.how == "once" and self._first())):
            raise RuntimeError("the client fell over")
        if fails and self.how == "hangs" and self._first():
            time.sleep(3600)
        return training

    def _first(self) -> bool:
        try:
            (Path(self.marks) / self.how).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        if rng.initial_seed() % 3 or self.how not in ("nan", "names"):
            return update
        tensors = dict(update.tensors)
        if self.how == "names":
            return update.replace(tensors={**tensors, "stowaway": torch.ones(3)})
        first = next(iter(tensors))
        tensors[first] = torch.full_like(tensors[first], float("nan"))
        return update.replace(tensors=tensors)


class Attack(Adversary):
    """An attack on labels that fails for each victim."""

    name: ClassVar[str] = "chaos-attack"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_counts", "labels"})

    how: Literal["raises", "hangs", "memory", "dies"]

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        while self.how == "hangs":
            time.sleep(0.01)
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "memory":
            held: list[Any] = [torch.empty(2**45, dtype=torch.uint8)]
            del held
        raise RuntimeError("the attack fell over")
