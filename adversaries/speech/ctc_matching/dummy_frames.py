"""Objective of ctc-matching: the distance of dummy utterances' gradients from the observed one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from adversaries.speech.candidates import loss_weight
from adversaries.speech.padded_utterances import padded
from adversaries.speech.utterance_attack import Distance
from fedsim.gradients import ctc_head_gradient, head_passes
from fedsim.victim import VictimModel


@dataclass(frozen=True, slots=True, eq=False)
class DummyFrames:
    """The objective of a batch; points (R, n) hold the frames of all utterances in turn.

    Attributes:
        model: The victim's model, in training mode if its dropout is simulated.
        targets: The labels of each utterance, int64 of shape (L,).
        shapes: The numbers of frames and of values of a frame, of each utterance.
        names: Names of the matched parameters: the head's, or any if `whole` is set.
        whole: Whether other gradients than the head's are matched, by autograd.
        distance: The distance from the observed gradient.
        smoothness: Weight of the mean squared difference of neighbouring frames.
        draws: Number of dropout masks whose mean gradient is matched; 1 without dropout.
    """

    model: VictimModel
    targets: list[Tensor]
    shapes: list[tuple[int, int]]
    names: list[str]
    whole: bool
    distance: Distance
    smoothness: float
    draws: int

    def split(self, points: Tensor) -> list[Tensor]:
        """Split points (R, n) into utterances (R, T, features)."""
        parts = torch.split(points, [length * width for length, width in self.shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def __call__(self, points: Tensor, _: Tensor) -> Tensor:
        """Objective (R,) of points (R, n), differentiable."""
        utterances = self.split(points)
        ours = self._of_all(utterances) if self.whole else self._of_head(utterances)
        return self.judge(ours, utterances)

    def judge(self, gradients: dict[str, Tensor], utterances: list[Tensor]) -> Tensor:
        """Objective (R,) of utterances (R, T, features) with their gradients (R, *shape)."""
        found = self.distance(gradients)
        for one in utterances if self.smoothness else ():
            if one.shape[1] > 1:  # a single frame has no neighbour
                rough = one.diff(dim=1).square().mean(dim=(1, 2))
                found = found + self.smoothness / len(utterances) * rough
        return found

    # Both methods sum over utterances instead of averaging: the distances ignore the scale.

    def _of_head(self, utterances: list[Tensor]) -> dict[str, Tensor]:
        draws, head = self.draws, self.model.head
        both = dict.fromkeys((f"{head}.weight", f"{head}.bias"), utterances[0].new_zeros(()))
        for frames, target in zip(utterances, self.targets, strict=True):
            passed = head_passes(self.model, frames.repeat_interleave(draws, dim=0), target)
            own = ctc_head_gradient(*passed, target, create_graph=True)
            for name, value in zip(both, own, strict=True):
                both[name] = both[name] + value.view(-1, draws, *value.shape[1:]).mean(dim=1)
        return {name: both[name] for name in self.names}

    def _of_all(self, utterances: list[Tensor]) -> dict[str, Tensor]:
        several, rows = len(self.targets) > 1, []
        weights = [loss_weight(self.model, one) if several else 1 for one in self.targets]
        for row in range(len(utterances[0])):
            total = dict.fromkeys(self.names, utterances[0].new_zeros(()))
            for frames, target, weight in zip(utterances, self.targets, weights, strict=True):
                for _ in range(self.draws):
                    gradient = self.model.gradient(
                        frames[row, None], target[None], names=self.names, create_graph=True
                    )
                    total = {name: sofar + weight * gradient[name] for name, sofar in total.items()}
            rows.append(total)
        return {name: torch.stack([one[name] for one in rows]) for name in self.names}


class SharedFrames:
    """The objectives of several victims of one model, whose utterances share their passes.

    Args:
        each: The objective of each victim: of one utterance, the head's gradient, and no dropout.
    """

    def __init__(self, each: Sequence[DummyFrames]) -> None:
        self._each = each
        self._sizes = [length * width for ((length, width),) in (one.shapes for one in each)]
        targets = [one.targets[0] for one in each]
        empty = [targets[0].new_zeros(one.shapes[0]) for one in each]
        _, self._targets, self._lengths = padded(empty, targets)
        self._victims: Tensor | None = None
        self._rows, self._back = list[Tensor](), targets[0]

    def __call__(self, points: Tensor, victims: Tensor) -> Tensor:
        """Objective (R,) of points (R, n) of victims (R,); shorter utterances have spare values."""
        if victims is not self._victims:
            # This waits for a GPU: `minimise` passes the same tensor until a start ends.
            self._victims = victims
            self._rows = [(victims == at).nonzero()[:, 0] for at in range(len(self._each))]
            self._back = torch.cat(self._rows).argsort()
        model, ((_, width), *_) = self._each[0].model, self._each[0].shapes
        targets = self._targets[victims]
        lengths = None if self._lengths is None else self._lengths[victims]
        frames = points.view(len(points), -1, width)
        if lengths is not None:  # windows of frames reach beyond the last one
            there = torch.arange(frames.shape[1], device=frames.device) < lengths[:, None]
            frames = frames * there[:, :, None]
        passed = head_passes(model, frames, targets, lengths)
        weight, bias = ctc_head_gradient(*passed, targets, lengths, create_graph=True)
        both = {f"{model.head}.weight": weight, f"{model.head}.bias": bias}
        found = []
        for one, rows, size in zip(self._each, self._rows, self._sizes, strict=True):
            if len(rows):
                own = {name: both[name][rows] for name in one.names}
                found.append(one.judge(own, one.split(points[rows, :size])))
        return torch.cat(found)[self._back]
