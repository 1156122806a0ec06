"""Dummy utterances of a batch: the gradients they have, and how far these are from one observed."""

from collections.abc import Callable

import torch
from torch import Tensor

from adversaries.speech.candidates import Candidate
from fedsim.gradients import WhitenedDistance, cosine_distance, ctc_head_gradient, head_passes
from fedsim.victim import VictimModel

__all__ = ["DummyFrames"]


class DummyFrames:
    """The objective of a batch: points (R, n) are all utterances' frames, one after the other.

    model: in the mode that its dropout asks for. case: what is assumed to have been said, and in
    how many frames. theirs: what is matched, by parameter name, with a first dimension of 1; the
    head's alone, or with `whole` of any. features: values of a frame. floor: of
    `WhitenedDistance`; None: the cosine distance. smoothness: the weight of the mean squared
    difference of neighbouring frames. masks: of dropout, whose mean gradient is matched; 0: none.
    """

    def __init__(
        self,
        model: VictimModel,
        case: Candidate,
        theirs: dict[str, Tensor],
        features: int,
        *,
        whole: bool,
        floor: float | None,
        smoothness: float,
        masks: int,
    ) -> None:
        self._model, self._theirs, self._whole = model, theirs, whole
        self._smoothness, self._draws = smoothness, max(1, masks)
        self._far: Callable[[dict[str, Tensor]], Tensor] = lambda ours: cosine_distance(
            ours, theirs
        )
        if floor is not None:
            observed = {name: value[0] for name, value in theirs.items()}
            self._far = WhitenedDistance(observed, floor)
        self._shapes = [(length, features) for length in case.lengths]
        self.size = sum(case.lengths) * features
        self._targets = [one.to(next(iter(theirs.values())).device) for one in case.targets]

    def split(self, points: Tensor) -> list[Tensor]:
        """Each utterance (R, T, features)."""
        parts = torch.split(points, [length * width for length, width in self._shapes], dim=1)
        return [part.view(-1, *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def __call__(self, points: Tensor, _: Tensor) -> Tensor:
        """Distances (R,) of points (R, n), differentiable, with what roughness counts."""
        heard = self.split(points)
        ours = self._of_all(heard) if self._whole else self._of_head(heard)
        found = self._far(ours)
        for one in heard if self._smoothness else ():
            if one.shape[1] == 1:
                continue  # a single frame has no neighbour
            rough = one.diff(dim=1).square().mean(dim=(1, 2))
            found = found + self._smoothness / len(heard) * rough
        return found

    # Sums over utterances, where the loss has a mean: both distances forgive a gradient's length.

    def _of_head(self, heard: list[Tensor]) -> dict[str, Tensor]:
        draws, head = self._draws, self._model.head
        both = {f"{head}.weight": torch.zeros(()), f"{head}.bias": torch.zeros(())}
        for frames, target in zip(heard, self._targets, strict=True):
            passed = head_passes(self._model, frames.repeat_interleave(draws, dim=0), target)
            own = ctc_head_gradient(*passed, target, create_graph=True)
            for name, value in zip(both, own, strict=True):
                both[name] = both[name] + value.view(-1, draws, *value.shape[1:]).mean(dim=1)
        return {name: both[name] for name in self._theirs}

    def _of_all(self, heard: list[Tensor]) -> dict[str, Tensor]:
        rows = []
        for row in range(len(heard[0])):
            total = dict.fromkeys(self._theirs, torch.zeros(()))
            for frames, target in zip(heard, self._targets, strict=True):
                for _ in range(self._draws):
                    gradient = self._model.gradient(
                        frames[row, None], target[None], names=self._theirs, create_graph=True
                    )
                    total = {name: sofar + gradient[name] for name, sofar in total.items()}
            rows.append(total)
        return {name: torch.stack([one[name] for one in rows]) for name in self._theirs}
