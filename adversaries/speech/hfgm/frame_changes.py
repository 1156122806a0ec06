"""Direct search over changes of single frames that lower the gradient distance (HFGM)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from adversaries.speech.hfgm.changed_frames import ChangedFrames
from fedsim import Job, VictimModel
from fedsim.gradients import ctc_head_gradient, head_passes

VALUES = 2**26
"""The largest number of values of head inputs that are held at a time."""

ALIKE = 1e-4
"""Tolerance between the logits of the incremental pass and the model's own."""

CTC = 1e-2
"""Relative tolerance between the closed-form gradient and that of autograd. In float32, CTC over a
thousand frames differs by 1e-3; another loss has a different gradient."""

LARGE = 2**22
"""Values of the largest weight from which torch's own LSTM is faster on a CPU than that of oneDNN,
which also computes the gradients of its weights."""

EVERY = 16
"""Iterations after which the curvature of the distance is measured again."""

CONTROLS = 16
"""Number of changes that are evaluated for it."""


@dataclass(eq=False)
class FrameChanges(ABC):
    """Gradients of one utterance with a known transcript, and of changes of its frames.

    Attributes:
        model: A private copy in evaluation mode, on its device.
        target: Labels, (L,) int64.
        names: Parameters whose gradients are computed.
        lr: Learning rate of the client's local steps.
        steps: Number of local steps on this utterance, whose mean gradient is computed.
        way: How gradients are computed, for the diagnostics.
        frames: The utterance, (T, F), once it is set.
    """

    model: VictimModel
    target: Tensor
    names: Sequence[str]
    lr: float = 0.0
    steps: int = 1
    way: str = field(init=False)
    frames: Tensor = field(init=False)

    @abstractmethod
    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance to frames (T, F); returns its gradients (1, *shape) by name."""

    @abstractmethod
    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the utterance for K changes of one frame each.

        Args:
            at: Index of the changed frame, (K,) int64.
            moves: Vectors added to that frame, (K, F).

        Yields:
            Gradients (k, *shape) by name, of some of the changes at a time, in order.
        """


class HeadOnly(FrameChanges):
    """The head's gradients under CTC, in closed form from its inputs and outputs."""

    incremental: ChangedFrames | None = None

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; the first call checks the closed form against autograd.

        Raises:
            ValueError: The closed form is wrong, because the model is not trained with CTC.
        """
        first = not hasattr(self, "frames")
        self.frames = frames
        if first:
            self._look(frames)
        if self.incremental is not None:
            features, logits = self.incremental.base(frames)
            return self._gradients(features[None], logits[None])
        return self._gradients(*self._passes(frames[None]))

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes, as many in one pass as memory allows."""
        most = max(1, VALUES // (len(self.frames) * self.width))
        for some, by in zip(torch.split(at, most), torch.split(moves, most), strict=True):
            if self.incremental is not None:
                yield self._gradients(*self.incremental(some, by))
            else:
                yield self._gradients(*self._passes(_added(self.frames, some, by)))

    def _look(self, frames: Tensor) -> None:
        self.model.module.requires_grad_(True)  # the check of another utterance has turned it off
        with torch.enable_grad():
            expected = self.model.gradient(frames[None], self.target[None], names=self.names)
        self.model.module.requires_grad_(False)
        features, logits = self._passes(frames[None])
        self.width = features.shape[2]
        ours = self._gradients(features, logits)
        for name, value in expected.items():
            if float((ours[name][0] - value).norm()) > CTC * (float(value.norm()) or 1.0):
                raise ValueError(
                    f"the gradient of '{name}' is not what CTC on the head's outputs has: expected "
                    'a recogniser trained by CTC (model = "deepspeech"), or layers = "all"'
                )
        self.way = "whole"
        try:
            shortcut = ChangedFrames(self.model.module, frames.shape[1])
            close = torch.allclose(shortcut.base(frames)[1], logits[0], rtol=0, atol=ALIKE)
        except ValueError:
            return
        if close:
            self.incremental, self.way = shortcut, "incremental"

    @torch.no_grad()
    def _passes(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        return head_passes(self.model, frames, self.target)

    def _gradients(
        self, features: Tensor, logits: Tensor, *, create_graph: bool = False
    ) -> dict[str, Tensor]:
        weight, bias = ctc_head_gradient(features, logits, self.target, create_graph=create_graph)
        both = {f"{self.model.head}.weight": weight, f"{self.model.head}.bias": bias}
        return {name: both[name] for name in self.names}


class Differentiable(HeadOnly):
    """The same, where the utterance's gradients can be differentiated by its `frames`."""

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; its gradients keep their graph."""
        if not hasattr(self, "frames"):
            self._look(frames)
        self.frames = frames.detach().requires_grad_()
        largest = max(weight.numel() for weight in self.model.module.parameters())
        plain = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None)
        with plain if largest >= LARGE else nullcontext(), torch.enable_grad():
            passes = head_passes(self.model, self.frames[None], self.target)
            return self._gradients(*passes, create_graph=True)

    @torch.no_grad()
    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes; the incremental pass meets the utterance here first."""
        if self.incremental is not None:
            self.incremental.base(self.frames)
        yield from super().changed(at, moves)


class Whole(FrameChanges):
    """Gradients of any parameters, after any number of local steps, one change at a time."""

    way = "one by one"

    def move_to(self, frames: Tensor) -> dict[str, Tensor]:
        """Set the utterance; gradients by autograd."""
        self.frames = frames
        return self._of(frames)

    def changed(self, at: Tensor, moves: Tensor) -> Iterator[dict[str, Tensor]]:
        """Gradients of the changes, one at a time."""
        for one in _added(self.frames, at, moves):
            yield self._of(one)

    def _of(self, frames: Tensor) -> dict[str, Tensor]:
        """The mean gradient over the local steps; the model's weights are restored afterwards."""
        wanted = self.names if self.steps == 1 else None
        weights = self.model.parameters()
        before = [value.detach().clone() for value in weights.values() if self.steps > 1]
        total = {name: torch.zeros_like(weights[name]) for name in self.names}
        for step in range(self.steps):
            gradient = self.model.gradient(frames[None], self.target[None], names=wanted)
            total = {name: sofar + gradient[name] for name, sofar in total.items()}
            if step + 1 < self.steps:
                with torch.no_grad():
                    for name, weight in weights.items():
                        weight.sub_(gradient[name], alpha=self.lr)
        with torch.no_grad():
            for weight, value in zip(weights.values(), before, strict=False):
                weight.copy_(value)
        return {name: value[None] / self.steps for name, value in total.items()}


def _added(frames: Tensor, at: Tensor, moves: Tensor) -> Tensor:
    """Utterances (K, T, F) with one changed frame each."""
    found = frames.expand(len(at), -1, -1).clone()
    found[torch.arange(len(at), device=at.device), at] += moves
    return found


@dataclass(eq=False)
class DirectSearch:
    """State of the search: current and best frames of a batch, and their gradients.

    Attributes:
        tried: Gradients under changes, for each utterance.
        far: Distances (K,) of gradients (K, *shape) by parameter name from the observed one.
        shapes: Numbers of frames and of features of each utterance.
        job: The attack's job.
        predicted: Whether vectors are selected by a first-order prediction of the distance, from
            its gradient with respect to the frames, instead of evaluating the distance of each.
            `tried` must then be `Differentiable`.
        step: Length of the vectors.
        halved: Iteration at which the step was last halved.
        lowest: Lowest distance so far.
        outcome: How the search ended.
        evaluated: Number of vectors evaluated so far.
        drawn: Number of vectors drawn so far.
        kept: Number of vectors kept so far.
        frames: Current frames of each utterance.
        best: Frames with the lowest distance.
    """

    tried: Sequence[FrameChanges]
    far: Callable[[Mapping[str, Tensor]], Tensor]
    shapes: Sequence[tuple[int, int]]
    job: Job
    predicted: bool = False
    step: float = 1.0
    halved: int = 0
    lowest: float = math.inf
    outcome: str = ""
    evaluated: int = 0
    drawn: int = 0
    kept: int = 0
    frames: list[Tensor] = field(default_factory=list)
    best: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.frames = [
            (2 * torch.rand(shape, generator=self.job.rng) - 1).to(self.job.device)
            for shape in self.shapes
        ]
        self.curvatures = [0.0] * len(self.tried)
        self.turns = [0] * len(self.tried)
        self.own = [
            tried.move_to(frames) for tried, frames in zip(self.tried, self.frames, strict=True)
        ]
        self._judge()

    def iterate(self, count: int) -> None:
        """One iteration: draw `count` vectors for a random utterance, and add those that help."""
        rng, device = self.job.rng, self.job.device
        turn = 0
        if len(self.frames) > 1:
            turn = int(torch.randint(len(self.frames), (), generator=rng))
        length, width = self.shapes[turn]
        at = torch.randint(length, (count,), generator=rng).to(device)
        moves = functional.normalize(torch.randn(count, width, generator=rng), dim=1).to(device)
        moves *= self.step
        judge = self._predict if self.predicted else self._evaluate
        better = judge(turn, at, moves) < 0
        self.drawn, self.kept = self.drawn + count, self.kept + int(better.sum())
        frames = self.frames[turn].index_add(0, at[better], moves[better])
        self.frames[turn], self.own[turn] = frames, self.tried[turn].move_to(frames)
        self._judge()

    def _evaluate(self, turn: int, at: Tensor, moves: Tensor) -> Tensor:
        """How much each of K changes raises the distance, (K,)."""
        self.evaluated += len(at)
        gradients = self.tried[turn].changed(at, moves)
        return torch.cat([self._far(turn, some) for some in gradients]) - self.now

    def _predict(self, turn: int, at: Tensor, moves: Tensor) -> Tensor:
        """The same to second order: slope times change, and one curvature for all directions.

        Every `EVERY` iterations the curvature is measured on the `CONTROLS` changes that are
        closest to leaving the distance as it is.
        """
        with torch.enable_grad():
            far = self._far(turn, self.own[turn]).sum()
            (slope,) = torch.autograd.grad(far, self.tried[turn].frames)
        linear = (slope[at] * moves).sum(dim=1)
        bend = self.step**2 / 2
        if self.turns[turn] % EVERY == 0:
            close = (linear + self.curvatures[turn] * bend).abs().argsort()[:CONTROLS]
            apart = self._evaluate(turn, at[close], moves[close]) - linear[close]
            self.curvatures[turn] = float(apart.mean()) / bend
        self.turns[turn] += 1
        return linear + self.curvatures[turn] * bend

    def _judge(self) -> None:
        self.now = self._far(0, self.own[0]).item()
        if self.now < self.lowest:
            self.lowest, self.best = self.now, list(self.frames)

    def _far(self, turn: int, ours: Mapping[str, Tensor]) -> Tensor:
        """Distances (K,) of the batch's mean gradient with other gradients for one utterance."""
        others = [own for index, own in enumerate(self.own) if index != turn]
        mean = {
            name: (value + sum(own[name].detach() for own in others)) / len(self.own)
            for name, value in ours.items()
        }
        return self.far(mean)
