"""Adversaries and defenses that misbehave; the `rogues` fixture registers them by name."""

import contextlib
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from fedsim.adversary import Adversary, Job
from fedsim.defense import ClientState, Defense, Training
from fedsim.knowledge import Knowledge
from fedsim.records import Observation, Reconstruction, Update
from fedsim.seeds import derive

LABELS = frozenset({"label_counts", "labels"})
NOTHING = Reconstruction(label_counts={0: 1})


class Vandal(Adversary):
    """Overwrites everything it was handed, and seeds and draws from the global generators."""

    name: ClassVar[str] = "vandal"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL | Knowledge.AUXILIARY
    recovers: ClassVar[frozenset[str]] = LABELS

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        for one in (seen, *(seen.history or ())):
            self._wreck(one)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        random.random(), np.random.rand(), torch.rand(3)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        return NOTHING

    def _wreck(self, seen: Observation) -> None:
        gradient: Any = seen.gradient
        for value in gradient.values():
            value.fill_(float("nan"))
        gradient.clear()
        assert seen.model is not None
        with torch.no_grad():
            for value in seen.model.module.state_dict().values():
                value.fill_(7)
        seen.model.module.eval().requires_grad_(False)
        for value in (seen.buffers or {}).values():
            value.fill_(float("nan"))
        if seen.labels is not None:
            seen.labels.zero_()
        if seen.auxiliary is not None:
            seen.auxiliary.inputs.zero_()
            seen.auxiliary.labels.zero_()


class Rubbish(Adversary):
    """Claims what cannot be scored, or raises."""

    name: ClassVar[str] = "rubbish"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = LABELS | {"inputs"}

    how: Literal[
        "none",
        "text",
        "empty",
        "types",
        "shapes",
        "nan",
        "many",
        "raise",
        "memory",
        "allocate",
        "surrogate",
        "fills",
    ] = "none"

    def fills(self) -> frozenset[str]:
        if self.how == "fills":
            raise KeyError("a part that is not there")
        return super().fills()

    def reconstruct(self, seen: Observation, job: Job) -> Any:
        if self.how == "raise":
            raise RuntimeError("the attack fell over,\nin two lines")
        if self.how == "surrogate":
            raise RuntimeError("lone \ud800")
        if self.how == "memory":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        if self.how == "allocate":
            torch.empty(2**50)
        shape = seen.spec.input_shape or ()
        fine = {0: seen.num_examples or 1}
        claims: dict[str, Any] = {
            "none": None,
            "text": "seven",
            "empty": Reconstruction(),
            "fills": Reconstruction(label_counts=fine),
            "types": Reconstruction(label_counts={"a": "b"}, inputs=["cat"]),  # type: ignore[dict-item,list-item]
            "shapes": Reconstruction(label_counts=fine, inputs=[torch.rand(2, 3)]),
            "nan": Reconstruction(label_counts=fine, inputs=[torch.full(shape, float("nan"))]),
            "many": Reconstruction(label_counts={0: 10**6}, inputs=[torch.rand(shape)] * 1000),
        }
        return claims[self.how]


class Sleeper(Adversary):
    """Never ends: reports progress for ever, is deaf, or cannot even be interrupted.

    If it names a file, it waits until that is there.
    """

    name: ClassVar[str] = "sleeper"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = LABELS

    how: Literal["reports", "deaf", "catches"] = "reports"
    until: str = ""

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        while not (self.until and Path(self.until).exists()):
            try:
                time.sleep(0.02)
            except Exception:
                if self.how != "catches":
                    raise
            if self.how == "reports":
                job.progress(0, 0.0)
        return Reconstruction(label_counts={0: 1})


class Deadly(Adversary):
    """Ends its process, as a segmentation fault would."""

    name: ClassVar[str] = "deadly"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = LABELS

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        os._exit(3)


class Historian(Adversary):
    """Remembers how long each history was that it saw (in this process), and the learning rate."""

    name: ClassVar[str] = "historian"
    needs: ClassVar[Knowledge] = Knowledge.HISTORY
    recovers: ClassVar[frozenset[str]] = LABELS

    lengths: ClassVar[list[int]] = []
    rates: ClassVar[list[float | None]] = []

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        self.rates.append(seen.lr)
        self.lengths.append(len(seen.know(Knowledge.HISTORY)))
        return NOTHING


class Flock(Adversary):
    """Attacks up to three victims at once, and misbehaves when one client is among them.

    Claims the class of which the head's gradient is lowest, and draws the other labels. A call
    appends the number of its victims to the file `log`.
    """

    name: ClassVar[str] = "flock"
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT | Knowledge.BATCH_SIZE
    recovers: ClassVar[frozenset[str]] = LABELS
    group: ClassVar[int] = 3

    how: Literal[
        "fine", "raise", "die", "die once", "hang", "short", "none", "interrupt", "nap", "apart"
    ] = "fine"
    client: int = Field(default=2, ge=0, description="the client that it cannot cope with")
    known_as: str = Field(default="flock", description="its label in the scenario")
    seed: int = Field(default=0, ge=0, description="threat.seed of the scenario")
    log: str = Field(default="", description="file of the sizes of groups; none where empty")

    def together(self) -> int:
        return 1 if self.how == "apart" else self.group

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        return self.reconstruct_many([seen], [job])[0]

    def reconstruct_many(
        self, seen: Sequence[Observation], jobs: Sequence[Job]
    ) -> list[Reconstruction]:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{len(jobs)}\n")
        seeds = {derive(self.seed, f"attack.{self.known_as}", r, self.client) for r in range(9)}
        guilty = any(job.rng.initial_seed() in seeds for job in jobs)
        if guilty and self.how == "raise":
            raise RuntimeError("one of them is too much")
        if guilty and self.how == "die":
            os._exit(3)
        if self.how == "die once":
            with contextlib.suppress(FileExistsError):
                Path(f"{self.log}.died").touch(exist_ok=False)
                os._exit(3)
        if guilty and self.how == "interrupt":
            raise KeyboardInterrupt
        while guilty and self.how == "hang":
            time.sleep(0.02)
            jobs[0].progress(0, 0.0)
        if self.how == "nap":
            time.sleep(0.3)
        sums = torch.stack([one.gradient[f"{one.head}.weight"].sum(dim=1) for one in seen])
        claims = []
        for one, job, lowest in zip(seen, jobs, sums.argmin(dim=1).tolist(), strict=True):
            drawn = [int(torch.randint(10, (), generator=job.rng)) for _ in job.steps(3)]
            labels = torch.tensor([lowest, *drawn][: one.num_examples])
            claims.append(Reconstruction(labels=labels))
        if guilty and self.how == "none":
            claims[-1] = None  # type: ignore[call-overload]
        return claims[1:] if guilty and self.how == "short" and len(jobs) > 1 else claims


class Faulty(Defense):
    """A client, of all that run this defense, that fails in one way in one round.

    Must be the first of the defenses. seed: the run's, by which the client is told.
    """

    name: ClassVar[str] = "faulty"

    how: Literal[
        "raise",
        "memory",
        "allocate",
        "surrogate",
        "nan",
        "inf",
        "missing",
        "extra",
        "shape",
        "huge",
        "dies",
        "slow",
    ]
    client: int = Field(default=2, ge=0, description="the client that fails")
    round: int = Field(default=2, ge=1, description="the round in which it fails")
    seed: int = Field(default=3, ge=0, description="the run's seed")

    def prepare(self, training: Training) -> Training:
        told = training.rng.initial_seed()
        if told == derive(self.seed, "training", self.round, self.client):
            if self.how == "raise":
                raise RuntimeError("the client fell over")
            if self.how == "surrogate":
                raise RuntimeError("lone \ud800")
            if self.how == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
            if self.how == "allocate":
                torch.empty(2**50)
            if self.how == "dies":
                os._exit(3)
        if self.how == "slow":
            time.sleep(0.1)
        return training

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        told = rng.initial_seed()
        if told != derive(self.seed, f"defense.0.{self.name}", self.round, self.client):
            return update
        tensors = dict(update.tensors)
        first = next(iter(tensors))
        bad = {"nan": float("nan"), "inf": float("-inf"), "huge": 1e30}
        if self.how in bad:
            tensors[first] = tensors[first].clone()
            tensors[first].view(-1)[0] = bad[self.how]
        elif self.how == "missing":
            del tensors[first]
        elif self.how == "extra":
            tensors["stowaway"] = torch.ones(3)
        elif self.how == "shape":
            tensors[first] = tensors[first].flatten()[1:]
        return update.replace(tensors=tensors)


class Counting(Defense):
    """Adds to every coordinate how often this client has been protected before."""

    name: ClassVar[str] = "counting"

    def protect(self, update: Update, rng: torch.Generator, state: ClientState) -> Update:
        before = state.get("rounds", torch.zeros(()))
        state["rounds"] = before + 1
        return update.replace(tensors={k: v + before for k, v in update.tensors.items()})


class Trainer(Defense):
    """Takes part in the training itself: doubles every gradient."""

    name: ClassVar[str] = "trainer"

    def prepare(self, training: Training) -> Training:
        plain = training.gradient

        def doubled(module: Any, batch: Any) -> Any:
            gradient, loss = plain(module, batch)
            return {name: 2 * value for name, value in gradient.items()}, loss

        return training.replace(gradient=doubled)
