"""Utterances moved by changes of single frames that bring their gradient closer (HFGM)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from adversaries.speech.hfgm.frame_changes import FrameChanges
from fedsim.adversary import Job

__all__ = ["DirectSearch"]


@dataclass(eq=False)
class DirectSearch:
    """The utterances of a batch as they stand, their gradients, and the best there was.

    tried: one an utterance. far: distances (K,) from the observed gradient of gradients (K, *shape)
    by name. shapes: frames and values of each utterance. step: length of what is added; halved: the
    iteration from which on. drawn, kept: vectors so far.
    """

    tried: Sequence[FrameChanges]
    far: Callable[[Mapping[str, Tensor]], Tensor]
    shapes: Sequence[tuple[int, int]]
    job: Job
    step: float = 1.0
    halved: int = 0
    lowest: float = math.inf
    outcome: str = ""
    drawn: int = 0
    kept: int = 0
    frames: list[Tensor] = field(default_factory=list)
    best: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frames = [
            (2 * torch.rand(shape, generator=self.job.rng) - 1).to(self.job.device)
            for shape in self.shapes
        ]
        self.own = [
            tried.move_to(frames) for tried, frames in zip(self.tried, self.frames, strict=True)
        ]
        self._judge()

    def iterate(self, count: int) -> None:
        """One iteration, of an utterance drawn at random."""
        rng, device = self.job.rng, self.job.device
        turn = 0
        if len(self.frames) > 1:
            turn = int(torch.randint(len(self.frames), (), generator=rng))
        length, width = self.shapes[turn]
        at = torch.randint(length, (count,), generator=rng).to(device)
        moves = functional.normalize(torch.randn(count, width, generator=rng), dim=1).to(device)
        moves *= self.step
        far = torch.cat([self._far(turn, some) for some in self.tried[turn].changed(at, moves)])
        better = far < self.now
        self.drawn, self.kept = self.drawn + count, self.kept + int(better.sum())
        frames = self.frames[turn].index_add(0, at[better], moves[better])
        self.frames[turn], self.own[turn] = frames, self.tried[turn].move_to(frames)
        self._judge()

    def halve(self, at: int) -> None:
        """Take half the step from iteration `at` on."""
        self.step, self.halved = self.step / 2, at

    def _judge(self) -> None:
        self.now = float(self._far(0, self.own[0]))
        if self.now < self.lowest:
            self.lowest, self.best = self.now, list(self.frames)

    def _far(self, turn: int, ours: Mapping[str, Tensor]) -> Tensor:
        """Distances (K,) of the batch's mean where one utterance's gradient is another."""
        others = [own for index, own in enumerate(self.own) if index != turn]
        mean = {
            name: (value + sum(own[name] for own in others)) / len(self.own)
            for name, value in ours.items()
        }
        return self.far(mean)
