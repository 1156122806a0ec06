"""Adversaries that break their contract, for tests alone."""

import os
import random
import time
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsim import Adversary, Job, Knowledge, Observation, Reconstruction

LABEL = Reconstruction(label_set=frozenset({0}))


class _Bad(Adversary):
    needs: ClassVar[Knowledge] = Knowledge.HEAD_GRADIENT
    recovers: ClassVar[frozenset[str]] = frozenset({"label_set"})


class Sleeper(_Bad):
    """Sleeps, and never reports progress."""

    name: ClassVar[str] = "bad-sleeper"

    seconds: float = Field(default=3600.0, gt=0, description="how long, in seconds")
    deaf: bool = Field(default=False, description="swallow whatever tries to wake it, and sleep on")

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Sleep."""
        end = time.monotonic() + self.seconds
        while (left := end - time.monotonic()) > 0:
            try:
                time.sleep(left)
            except Exception:
                if not self.deaf:
                    raise
        return LABEL


class Exiter(_Bad):
    """Ends the process it runs in, without a word."""

    name: ClassVar[str] = "bad-exiter"

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Exit."""
        os._exit(7)


class Raiser(_Bad):
    """Raises."""

    name: ClassVar[str] = "bad-raiser"

    message: str = Field(default="on purpose", description="what it says")

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Raise."""
        raise RuntimeError(self.message)


class Abuser(_Bad):
    """Overwrites everything it was given, and draws from and seeds the global generators."""

    name: ClassVar[str] = "bad-abuser"
    needs: ClassVar[Knowledge] = Knowledge.GRADIENT | Knowledge.MODEL

    def reconstruct(self, seen: Observation, job: Job) -> Reconstruction:
        """Do damage to its own copies, and to the process's generators."""
        for value in seen.gradient.values():
            value.fill_(float("nan"))
        for value in (seen.buffers or {}).values():
            value.fill_(float("nan"))
        if seen.model is not None:
            with torch.no_grad():
                for parameter in seen.model.module.parameters():
                    parameter.fill_(1e30)
            seen.model.module.eval()
        for generator in (random.seed, np.random.seed, torch.manual_seed):
            generator(0)
        random.random()
        np.random.rand(3)
        torch.rand(3)
        return LABEL
