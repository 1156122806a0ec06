"""Objective of ctc-matching: the distance of dummy utterances' gradients from the observed one."""

import torch
from torch import Tensor

from adversaries.speech.candidates import Candidate
from adversaries.speech.utterance_attack import Distance
from fedsim.gradients import ctc_head_gradient, head_passes
from fedsim.victim import VictimModel


class DummyFrames:
    """The objective of a batch; points (R, n) hold the frames of all utterances in turn.

    Args:
        model: The victim's model, in training mode if its dropout is simulated.
        candidate: Transcripts and lengths that are assumed.
        theirs: The observed gradient by parameter name, (1, *shape); of the head, or of any
            parameters if `whole` is set.
        features: Number of values of a frame.
        whole: Whether other gradients than the head's are matched, by autograd.
        distance: The distance from `theirs`.
        smoothness: Weight of the mean squared difference of neighbouring frames.
        masks: Number of dropout masks whose mean gradient is matched; 0: no dropout.
    """

    def __init__(
        self,
        model: VictimModel,
        candidate: Candidate,
        theirs: dict[str, Tensor],
        features: int,
        *,
        whole: bool,
        distance: Distance,
        smoothness: float,
        masks: int,
    ) -> None:
        self._model, self._theirs, self._whole = model, theirs, whole
        self._smoothness, self._draws = smoothness, max(1, masks)
        self._distance = distance
        self._shapes = [(length, features) for length in candidate.lengths]
        self.size = sum(candidate.lengths) * features
        device = next(iter(theirs.values())).device
        self._targets = [one.to(device) for one in candidate.targets]

    def split(self, points: Tensor) -> list[Tensor]:
        """Split points (R, n) into utterances (R, T, features)."""
        parts = torch.split(points, [length * width for length, width in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def __call__(self, points: Tensor, _: Tensor) -> Tensor:
        """Objective (R,) of points (R, n), differentiable."""
        utterances = self.split(points)
        ours = self._of_all(utterances) if self._whole else self._of_head(utterances)
        found = self._distance(ours)
        for one in utterances if self._smoothness else ():
            if one.shape[1] > 1:  # a single frame has no neighbour
                rough = one.diff(dim=1).square().mean(dim=(1, 2))
                found = found + self._smoothness / len(utterances) * rough
        return found

    # Both methods sum over utterances instead of averaging: the distances ignore the scale.

    def _of_head(self, utterances: list[Tensor]) -> dict[str, Tensor]:
        draws, head = self._draws, self._model.head
        both = {f"{head}.weight": torch.zeros(()), f"{head}.bias": torch.zeros(())}
        for frames, target in zip(utterances, self._targets, strict=True):
            passed = head_passes(self._model, frames.repeat_interleave(draws, dim=0), target)
            own = ctc_head_gradient(*passed, target, create_graph=True)
            for name, value in zip(both, own, strict=True):
                both[name] = both[name] + value.view(-1, draws, *value.shape[1:]).mean(dim=1)
        return {name: both[name] for name in self._theirs}

    def _of_all(self, utterances: list[Tensor]) -> dict[str, Tensor]:
        rows = []
        for row in range(len(utterances[0])):
            total = dict.fromkeys(self._theirs, torch.zeros(()))
            for frames, target in zip(utterances, self._targets, strict=True):
                for _ in range(self._draws):
                    gradient = self._model.gradient(
                        frames[row, None], target[None], names=self._theirs, create_graph=True
                    )
                    total = {name: sofar + gradient[name] for name, sofar in total.items()}
            rows.append(total)
        return {name: torch.stack([one[name] for one in rows]) for name in self._theirs}
