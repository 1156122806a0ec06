"""Direct search over changes of single frames that lower the gradient distance (HFGM)."""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from adversaries.speech.candidates import loss_weight
from adversaries.speech.hfgm.frame_changes import Differentiable, FrameChanges, move_together
from adversaries.speech.padded_utterances import ignores_padding
from fedsim import Job, Reconstruction

EVERY = 16
"""Iterations after which the curvature of the distance is measured again."""

CONTROLS = 16
"""Number of changes that are evaluated for it."""


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
        if self.predicted:
            iterate_together([self], count)
            return
        turn, at, moves = self.draw(count)
        frames = self.add(turn, at, moves, self.evaluate(turn, at, moves) < 0)
        self.move_to(turn, frames, self.tried[turn].move_to(frames))

    def draw(self, count: int) -> tuple[int, Tensor, Tensor]:
        """A random utterance, and `count` vectors (K, F) for random frames (K,) of it."""
        rng, device = self.job.rng, self.job.device
        turn = 0
        if len(self.frames) > 1:
            turn = int(torch.randint(len(self.frames), (), generator=rng))
        length, width = self.shapes[turn]
        at = torch.randint(length, (count,), generator=rng).to(device)
        moves = functional.normalize(torch.randn(count, width, generator=rng), dim=1).to(device)
        return turn, at, moves * self.step

    def add(self, turn: int, at: Tensor, moves: Tensor, better: Tensor) -> Tensor:
        """The frames of an utterance with those changes added that are `better`, (K,) bool."""
        kept = better.nonzero().flatten()
        self.drawn, self.kept = self.drawn + len(at), self.kept + len(kept)
        return self.frames[turn].index_add(0, at[kept], moves[kept])

    def move_to(self, turn: int, frames: Tensor, own: dict[str, Tensor]) -> None:
        """Set an utterance's frames and gradients."""
        self.frames[turn], self.own[turn] = frames, own
        self._judge()

    def end(self) -> None:
        """Keep the frames that were found, and no graph."""
        self.own = []
        for one, frames in zip(self.tried, self.frames, strict=True):
            one.frames = frames

    def distance(self, turn: int) -> Tensor:
        """The distance, which can be differentiated by an utterance's frames."""
        with torch.enable_grad():
            return self._far(turn, self.own[turn]).sum()

    def predict(self, turn: int, at: Tensor, moves: Tensor, slope: Tensor) -> Tensor:
        """How much each of K changes raises the distance to second order, (K,).

        That is slope times change, and one curvature for all directions. Every `EVERY` iterations
        the curvature is measured on the `CONTROLS` changes that are closest to leaving the distance
        as it is.

        Args:
            turn: The utterance.
            at: Index of the changed frame, (K,) int64.
            moves: Vectors added to that frame, (K, F).
            slope: The derivative of `distance` by the utterance's frames, (T, F).
        """
        linear = (slope[at] * moves).sum(dim=1)
        bend = self.step**2 / 2
        if self.turns[turn] % EVERY == 0:
            close = (linear + self.curvatures[turn] * bend).abs().argsort()[:CONTROLS]
            apart = self.evaluate(turn, at[close], moves[close]) - linear[close]
            self.curvatures[turn] = float(apart.mean()) / bend
        self.turns[turn] += 1
        return linear + self.curvatures[turn] * bend

    def evaluate(self, turn: int, at: Tensor, moves: Tensor) -> Tensor:
        """How much each of K changes raises the distance, (K,)."""
        self.evaluated += len(at)
        gradients = self.tried[turn].changed(at, moves)
        return torch.cat([self._far(turn, some) for some in gradients]) - self.now

    def _judge(self) -> None:
        self.now = self._far(0, self.own[0]).item()
        if self.now < self.lowest:
            self.lowest, self.best = self.now, list(self.frames)
        elif not self.best:  # the distance may never be finite
            self.best = list(self.frames)

    def _far(self, turn: int, ours: Mapping[str, Tensor]) -> Tensor:
        """Distances (K,) of the batch's mean gradient with other gradients for one utterance."""
        if len(self.own) == 1:
            return self.far(ours)
        weights = [loss_weight(one.model, one.target) for one in self.tried]
        others = [at for at in range(len(self.own)) if at != turn]
        mean = {
            name: (
                weights[turn] * value
                + sum(weights[at] * self.own[at][name].detach() for at in others)
            )
            / sum(weights)
            for name, value in ours.items()
        }
        return self.far(mean)


def iterate_together(searches: Sequence[DirectSearch], count: int) -> None:
    """One iteration of each of several searches with predicted changes, in shared passes.

    Args:
        searches: The searches, on the same model; of one utterance each, if there are several.
        count: Number of vectors that each draws.
    """
    drawn = [search.draw(count) for search in searches]
    each = [(search, turn) for search, (turn, _, _) in zip(searches, drawn, strict=True)]
    tried = [cast(Differentiable, search.tried[turn]) for search, turn in each]
    distances = [search.distance(turn) for search, turn in each]
    slopes = torch.autograd.grad(distances, [one.frames for one in tried])
    frames = [
        search.add(*draw, search.predict(*draw, slope) < 0)
        for search, draw, slope in zip(searches, drawn, slopes, strict=True)
    ]
    found = move_together(tried, frames)
    for (search, turn), own, gradients in zip(each, frames, found, strict=True):
        search.move_to(turn, own, gradients)


def side_by_side(
    attacks: Sequence[Generator[DirectSearch, None, Reconstruction]], count: int
) -> list[Reconstruction]:
    """Run attacks on one model to their claims, one iteration of each at a time, in shared passes.

    If the logits of an utterance depend on its padding, only utterances of one length share passes.

    Args:
        attacks: Each yields the search of which it wants the next iteration, and returns its claim.
            If there are several, their searches are as `iterate_together` needs them.
        count: Number of vectors that an iteration draws.

    Returns:
        The claim of each attack.
    """
    padded: bool | None = None
    going, found = dict(enumerate(attacks)), dict[int, Reconstruction]()
    while going:
        wanted = list[DirectSearch]()
        for at, attack in list(going.items()):
            try:
                wanted.append(next(attack))
            except StopIteration as end:
                found[at] = end.value
                del going[at]
        by_length: dict[int, list[DirectSearch]] = {}
        for search in wanted:
            by_length.setdefault(len(search.frames[0]), []).append(search)
        if len(by_length) > 1 and padded is None:
            padded = ignores_padding(
                wanted[0].tried[0].model,
                [search.frames[0] for search in wanted],
                [search.tried[0].target for search in wanted],
            )
        for some in [wanted] if padded else by_length.values():
            if len(some) > 1:
                iterate_together(some, count)
            elif some:
                some[0].iterate(count)
    return [found[at] for at in range(len(attacks))]
